// What the rule editor gains where scripts run: the messages of a preview stand by their fields
// while you type. The server validates the form.
"use strict";

(() => {
  const form = () => document.getElementById("rule-form");
  for (const button of document.querySelectorAll("#rule-form [data-noscript]")) button.hidden = true;
  if (window.weirRules) return; // pages are swapped in place: this is run once for each visit
  window.weirRules = true;

  const touched = new Set();
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target === document.body) touched.clear();
  });

  // Only who has been in a field is told what is wrong with it.
  document.addEventListener("input", note);
  document.addEventListener("change", note);
  function note(event) {
    if (form()?.contains(event.target)) touched.add(event.target.name.replace(/_unit$/, ""));
  }

  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id !== "effect") return;
    const wrong = new Map();
    for (const item of document.querySelectorAll("#effect [data-problems] li")) wrong.set(item.dataset.field, item.textContent);
    for (const item of document.querySelectorAll("#effect [data-problems] li")) {
      item.hidden = !touched.has(item.dataset.field) && !document.querySelector(`#f-${item.dataset.field}[aria-invalid]`);
    }
    for (const input of form().querySelectorAll("[id^=f-]")) {
      if (input.name && (touched.has(input.name) || input.hasAttribute("aria-invalid"))) mark(input, wrong.get(input.name));
    }
    const said = document.querySelector("#effect [data-said]");
    window.weir?.say(said ? said.textContent : [...wrong.values()].join(" "));
  });

  function mark(input, message) {
    const id = `${input.id}-error`;
    let place = document.getElementById(id);
    const others = (input.getAttribute("aria-describedby") ?? "").split(" ").filter((part) => part && part !== id);
    if (message) {
      if (!place) {
        place = Object.assign(document.createElement("p"), { id, className: "wrong" });
        input.closest(".field").append(place);
      }
      place.textContent = message;
      others.push(id);
      input.setAttribute("aria-invalid", "true");
    } else {
      place?.remove();
      input.removeAttribute("aria-invalid");
    }
    if (others.length) input.setAttribute("aria-describedby", others.join(" "));
    else input.removeAttribute("aria-describedby");
  }
})();
