// Suggestions below text fields: the combobox of the WAI-ARIA patterns, with a list that narrows as
// you type. The vendored combobox-nav does the keys and the active option. A field gets its
// suggestions from
//
//   list="ID"           the <datalist>, which is what a browser without scripts shows,
//   data-options="PATH" the server, as <option> elements, for the text in the parameter q,
//   data-zones          the time zones that the browser knows.
//
// Any other text can be entered, too. A chosen option is announced with the event "weir:chosen", and
// the end of the list with "weir:closed". While the field has data-choosing, its text is not
// complete.
"use strict";

(() => {
  const { htmx } = window;
  const source = document.querySelector("meta[name=combobox-nav]").content;
  if (!htmx || !HTMLElement.prototype.showPopover) return; // fields keep the list of the browser

  const mostShown = 100;
  const gap = 4; // pixels between the field and its list
  const boxes = new WeakMap(); // by field
  let library = null; // the promise of the library, once a page has a field
  let current = null; // the box whose list is open
  let count = 0;

  const fields = "input:is([list], [data-list], [data-options], [data-zones])";
  document.addEventListener("htmx:load", async (event) => {
    const found = [...(event.target.matches?.(fields) ? [event.target] : []), ...event.target.querySelectorAll(fields)];
    if (found.length === 0) return;
    library ??= import(source);
    const { default: Combobox } = await library;
    for (const input of found) if (input.isConnected && !boxes.has(input)) enhance(input, Combobox);
  });

  function enhance(input, Combobox) {
    if (input.hasAttribute("list")) { // or the browser would show its own list, too
      input.dataset.list = input.getAttribute("list");
      input.removeAttribute("list");
    }
    input.autocomplete = "off";
    const list = document.createElement("div");
    list.id = `suggested-${++count}`;
    list.className = "suggested";
    list.popover = "manual"; // in the top layer, so that no drawer or card cuts it off
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", "Suggestions");
    const box = { input, list, keys: new Combobox(input, list, { tabInsertsSuggestions: false }), typed: false, asked: 0, timer: 0 };
    boxes.set(input, box);
    // The field keeps the focus while somebody presses on the list.
    list.addEventListener("mousedown", (event) => event.preventDefault());
    list.addEventListener("combobox-commit", (event) => choose(box, event.target.dataset.value));
    input.addEventListener("keydown", (event) => press(box, event));
    input.addEventListener("keypress", (event) => {
      if (box.entered) event.preventDefault(); // the key that chooses does not send the form
    });
    input.addEventListener("input", () => {
      if (box.choosing) return;
      box.typed = true;
      if (current === box) complete(box);
      clearTimeout(box.timer);
      box.timer = setTimeout(() => suggest(box), input.dataset.options ? 150 : 0);
    });
    input.addEventListener("click", () => {
      if (current !== box) suggest(box);
    });
    input.addEventListener("blur", () => close(box));
  }

  // A name that was typed becomes the value that it names, before anything else sees the change. The
  // line with data-chosen shows the name of the value.
  document.addEventListener("change", ({ target }) => {
    if (!target.matches?.("input[data-listed]")) return;
    const text = plain(target.value.trim());
    const options = known(target);
    const named = options.find((option) => option.value === text) ?? options.find((option) => plain(option.title) === text);
    if (named) target.value = named.value;
    const line = document.querySelector(`[data-chosen="${target.id}"]`);
    if (line) line.textContent = named && named.title !== named.value ? named.title : "";
  }, true);

  function press(box, event) {
    const open = current === box;
    const active = open && box.input.hasAttribute("aria-activedescendant");
    box.entered = active && event.key === "Enter";
    if (event.isComposing || event.ctrlKey || event.metaKey || event.shiftKey) return;
    switch (event.key) {
      case "ArrowDown":
      case "ArrowUp":
        if (open) return; // combobox-nav moves
        suggest(box, event.altKey ? 0 : event.key === "ArrowDown" ? 1 : -1);
        break;
      case "Home":
      case "End": // otherwise they move within the text
        if (!active) return;
        box.keys.clearSelection();
        box.keys.navigate(event.key === "Home" ? 1 : -1);
        event.stopImmediatePropagation();
        break;
      case "Escape": // closes the list, and not the drawer around it
        close(box); // also if it would open in a moment
        if (!open) return;
        event.stopPropagation();
        break;
      case "Enter":
        if (active) return; // combobox-nav chooses
        clearTimeout(box.timer);
        close(box);
        return; // the form is sent
      default:
        return;
    }
    event.preventDefault();
  }

  // suggest opens the list for the text that was typed, or else for any text. move is the option that
  // becomes active: 1 for the first, -1 for the last, 0 for none.
  async function suggest(box, move = 0) {
    const { input } = box;
    const asked = ++box.asked;
    const text = box.typed ? input.value.trim() : "";
    let found = matching(known(input), text);
    if (input.dataset.options) {
      try {
        found = await fetched(input.dataset.options, text);
      } catch {
        return; // the field works without suggestions
      }
    }
    if (asked !== box.asked || document.activeElement !== input) return;
    const done = box.typed && (text === "" || (found.length === 1 && found[0].value === text));
    if (found.length === 0 || done) return close(box);
    open(box, found);
    if (move) box.keys.navigate(move);
  }

  function known(input) {
    if ("zones" in input.dataset) return ["UTC", ...Intl.supportedValuesOf("timeZone").filter((zone) => zone !== "UTC")].map((value) => ({ value, title: value, note: "" }));
    return read(document.getElementById(input.dataset.list));
  }

  // read returns the options of an element. A label is the name of the value, and a note says more
  // about it.
  function read(element) {
    return [...(element?.querySelectorAll("option") ?? [])].map((option) => {
      const title = option.getAttribute("label") || option.value;
      return { value: option.value, title, note: option.dataset.note || (title === option.value ? "" : option.value) };
    });
  }

  async function fetched(path, text) {
    const answer = await fetch(`${path}?q=${encodeURIComponent(text)}`);
    if (answer.redirected) location.reload(); // the session has ended
    if (!answer.ok || answer.redirected) throw new Error(`suggestions: ${answer.status}`);
    return read(new DOMParser().parseFromString(`<datalist>${await answer.text()}</datalist>`, "text/html").body);
  }

  const plain = (text) => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();

  // matching returns the options whose value or name contains the text, those that begin with it
  // first, whatever the case and the accents.
  function matching(options, text) {
    const wanted = plain(text);
    const rank = (option) => {
      const names = [plain(option.value), plain(option.title)];
      return names.some((name) => name.startsWith(wanted)) ? 0 : names.some((name) => name.includes(wanted)) ? 1 : 2;
    };
    return options.map((option) => [rank(option), option]).filter(([at]) => at < 2).sort(([a], [b]) => a - b).map(([, option]) => option);
  }

  function open(box, found) {
    if (current && current !== box) close(current);
    const { input, list } = box;
    const shown = found.slice(0, mostShown);
    box.values = shown.map((option) => option.value);
    list.replaceChildren(...shown.map((option, i) => {
      const row = document.createElement("div");
      row.id = `${list.id}-${i}`;
      row.setAttribute("role", "option");
      row.dataset.value = option.value;
      row.append(Object.assign(document.createElement("b"), { textContent: option.title }));
      if (option.note) row.append(" ", Object.assign(document.createElement("small"), { textContent: option.note }));
      return row;
    }));
    if (current === box) {
      box.keys.resetSelection();
    } else {
      (input.closest("label") ?? input).after(list);
      list.showPopover();
      box.keys.start();
      current = box;
    }
    list.scrollTop = 0;
    complete(box);
    place();
    const results = found.length === 1 ? "1 result" : `${found.length} results`;
    window.weir?.say(found.length > mostShown ? `${mostShown} of ${results}. Type to find others.` : `${results}.`);
  }

  // A text that equals an option is complete, and another one is not while the list is open.
  function complete({ input, values }) {
    input.toggleAttribute("data-choosing", !values.includes(input.value.trim()));
  }

  function close(box) {
    box.asked++; // ignores answers that are on their way
    clearTimeout(box.timer);
    if (current !== box) return;
    current = null;
    box.keys.stop();
    if (box.list.isConnected) box.list.hidePopover();
    box.list.remove();
    box.input.removeAttribute("data-choosing");
    if (box.typed && !box.choosing) box.input.dispatchEvent(new CustomEvent("weir:closed", { bubbles: true }));
  }

  function choose(box, value) {
    const { input } = box;
    box.choosing = true;
    close(box);
    input.value = value;
    box.typed = false;
    input.dispatchEvent(new Event("input", { bubbles: true }));
    input.dispatchEvent(new Event("change", { bubbles: true }));
    box.choosing = false;
    window.weir?.say(`${value} chosen.`);
    input.dispatchEvent(new CustomEvent("weir:chosen", { bubbles: true }));
  }

  // place puts the list below its field, or above if there is more space, within the part of the
  // page that a keyboard on the screen leaves.
  function place() {
    if (!current) return;
    const { input, list } = current;
    if (!input.isConnected || !input.checkVisibility()) return close(current);
    const field = input.getBoundingClientRect();
    const view = window.visualViewport;
    const [top, bottom] = [view.offsetTop, view.offsetTop + view.height];
    list.style.minWidth = `${field.width}px`;
    list.style.maxHeight = "";
    const below = bottom - field.bottom - 2 * gap;
    const above = field.top - top - 2 * gap;
    const up = below < Math.min(list.scrollHeight, 200) && above > below;
    list.style.maxHeight = `${Math.max(80, Math.min(320, up ? above : below))}px`;
    list.style.top = `${up ? field.top - gap - list.offsetHeight : field.bottom + gap}px`;
    list.style.left = `${Math.max(gap, Math.min(field.left, document.documentElement.clientWidth - list.offsetWidth - gap))}px`;
  }
  window.addEventListener("scroll", (event) => {
    if (event.target !== current?.list) place();
  }, { capture: true, passive: true });
  window.addEventListener("resize", place);
  window.visualViewport?.addEventListener("resize", place);
  document.addEventListener("htmx:afterSettle", () => {
    if (current && !current.input.isConnected) close(current);
  });
})();
