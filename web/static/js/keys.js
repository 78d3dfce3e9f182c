// Keyboard shortcuts: "?" lists them, "/" searches, "g" and a letter go to a page. They can be
// turned off, because a single key may be pressed by accident or by speech.
"use strict";

(() => {
  const offKey = "weir-shortcuts-off";
  const find = (id) => document.getElementById(id);
  let going = 0; // when "g" was pressed

  const off = () => localStorage.getItem(offKey) === "1";
  const typing = (element) => element.closest?.("input, textarea, select, [contenteditable]");

  function help() {
    const dialog = find("keys");
    if (!dialog || dialog.open) return;
    find("keys-on").checked = !off();
    dialog.showModal();
  }

  // The search field of the page, or else the palette.
  function search() {
    const field = document.querySelector("main input[type=search]");
    if (field?.checkVisibility()) {
      field.focus();
      field.select();
    } else {
      document.querySelector("[data-palette-open]")?.click();
    }
  }

  // The next or the previous row of a list whose rows have details.
  function step(by) {
    const rows = [...document.querySelectorAll("a[data-row]")];
    const now = rows.findIndex((a) => a.closest("tr").hasAttribute("aria-current"));
    const next = now < 0 ? rows[0] : rows[now + by];
    next?.click();
    return rows.length > 0;
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (document.querySelector("dialog[open]") || off()) return;
    const went = going && event.timeStamp - going < 1500;
    going = 0;
    if (went) {
      const link = document.querySelector(`#keys [data-go="${CSS.escape(event.key)}"]`);
      if (!link) return;
      event.preventDefault();
      return link.click();
    }
    switch (event.key) {
      case "?":
        help();
        break;
      case "/":
        search();
        break;
      case "j":
      case "k":
        if (!step(event.key === "j" ? 1 : -1)) return;
        break;
      case "g":
        going = event.timeStamp;
        return;
      default:
        return;
    }
    event.preventDefault();
  });

  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-keys]")) help();
    else if (event.target.id === "keys") event.target.close(); // outside of the dialog
  });
  document.addEventListener("change", (event) => {
    if (event.target.id !== "keys-on") return;
    if (event.target.checked) localStorage.removeItem(offKey);
    else localStorage.setItem(offKey, "1");
  });
})();
