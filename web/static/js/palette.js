// The command palette: Ctrl-K or Cmd-K on every page, or the link in the navigation. Its results
// are those of the page /search.
"use strict";

(() => {
  const find = (id) => document.getElementById(id);
  let asked = null; // the current search
  let timer = 0;
  let stale = false; // whether the list is of an earlier text

  function open() {
    const dialog = find("palette");
    if (!dialog || dialog.open) return;
    find("palette-input").value = "";
    dialog.showModal();
    search();
  }

  async function search() {
    if (asked) asked.abort();
    asked = new AbortController();
    const input = find("palette-input");
    const text = input.value.trim();
    try {
      const answer = await fetch("/search?fragment=options&q=" + encodeURIComponent(text), { signal: asked.signal });
      if (answer.redirected) return location.reload(); // the session has ended
      if (!answer.ok) return;
      const list = await answer.text();
      if (input.value.trim() !== text) return; // the text has changed, and the next search lists its results
      find("palette-options").innerHTML = list;
      stale = false;
      select(0);
    } catch (error) {
      if (error.name !== "AbortError") window.weir.say("The service does not respond. Try again.");
    }
  }

  function options() {
    return [...document.querySelectorAll("#palette-options [role=option]:not([aria-disabled])")];
  }

  function select(index) {
    const all = options();
    all.forEach((option, i) => option.setAttribute("aria-selected", String(i === index)));
    const chosen = all[index];
    if (chosen) {
      find("palette-input").setAttribute("aria-activedescendant", chosen.id);
      chosen.scrollIntoView({ block: "nearest" });
    } else {
      find("palette-input").removeAttribute("aria-activedescendant");
    }
  }

  function selected() {
    return options().findIndex((option) => option.getAttribute("aria-selected") === "true");
  }

  // Enter uses the text in the field, not the list of an earlier text.
  async function enter() {
    if (stale) {
      clearTimeout(timer);
      await search();
    }
    const chosen = options()[selected()];
    if (chosen && !stale) go(chosen);
  }

  function go(option) {
    find("palette").close();
    if (option.dataset.form === "keys") return find("keys").showModal();
    const form = find(option.dataset.form);
    if (form) {
      const buttons = [...form.querySelectorAll("button")];
      return form.requestSubmit(buttons.find((b) => b.value === option.dataset.value) ?? null);
    }
    // A link of the page, so that htmx swaps the page in place.
    const link = document.createElement("a");
    link.href = option.dataset.path;
    link.hidden = true;
    document.body.append(link);
    window.htmx.process(link);
    link.click();
  }

  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
      if (!find("palette")) return;
      event.preventDefault();
      return find("palette").open ? find("palette").close() : open();
    }
    if (event.target.id !== "palette-input") return;
    const count = options().length;
    const now = selected();
    switch (event.key) {
      case "ArrowDown":
        select((now + 1) % Math.max(count, 1));
        break;
      case "ArrowUp":
        select((now - 1 + count) % Math.max(count, 1));
        break;
      case "Enter":
        enter();
        break;
      default:
        return;
    }
    event.preventDefault();
  });

  document.addEventListener("input", (event) => {
    if (event.target.id !== "palette-input") return;
    stale = true;
    clearTimeout(timer);
    timer = setTimeout(search, 120);
  });

  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-palette-open]");
    if (opener && !event.ctrlKey && !event.metaKey && find("palette")) {
      event.preventDefault();
      event.stopPropagation();
      return open();
    }
    const option = event.target.closest("#palette-options [role=option]:not([aria-disabled])");
    if (option) return go(option);
    if (event.target.id === "palette") event.target.close(); // outside of the dialog
  }, true);
})();
