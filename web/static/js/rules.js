// The rule editor with scripts: the messages of a preview are shown at their fields while you type.
// The server validates the form.
"use strict";

(() => {
  const form = () => document.getElementById("rule-form");
  for (const button of document.querySelectorAll("#rule-form [data-noscript]")) button.hidden = true;
  if (window.weirRules) return; // pages are swapped in place: this must run only once
  window.weirRules = true;

  const touched = new Set();
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target !== document.body) return;
    touched.clear();
    kept.clear();
    changed = false;
  });

  // Errors are shown only at fields that the user has visited.
  document.addEventListener("input", note);
  document.addEventListener("change", note);
  function note(event) {
    if (form()?.contains(event.target)) touched.add(event.target.name.replace(/_unit$/, ""));
  }

  // Parts of the preview stay open or folded when it is drawn again.
  const kept = new Map();
  document.addEventListener("toggle", (event) => {
    if (event.target.dataset?.kept) kept.set(event.target.dataset.kept, event.target.open);
  }, true);

  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target?.id !== "effect" || !form()) return;
    for (const part of document.querySelectorAll("#effect [data-kept]")) {
      if (kept.has(part.dataset.kept)) part.open = kept.get(part.dataset.kept);
    }
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

  // The unit beside a number has the right form: 1 minute, 2 minutes.
  document.addEventListener("input", (event) => {
    const units = event.target.closest?.(".measure")?.querySelector("select");
    if (!units || event.target === units) return;
    for (const option of units.options) {
      if (option.closest("optgroup")) continue;
      const one = option.textContent.replace(/s$/, "");
      option.textContent = event.target.value.trim() === "1" ? one : `${one}s`;
    }
  });

  // Enter in a text field of a new rule moves on to the next one, rather than create the rule with
  // fields that nobody has seen. One that chooses a suggestion does no more. Elsewhere it submits a form without empty fields.
  let moved = false; // the key that is down has moved the focus: it does nothing else
  document.addEventListener("keydown", (event) => {
    moved = false;
    const input = event.target;
    if (event.key !== "Enter" || event.defaultPrevented || event.isComposing || !isNew() || !form().contains(input) || !input.matches("input[type=text]")) return;
    const shown = [...form().querySelectorAll("input[type=text], select")].filter((e) => e.checkVisibility());
    const empty = shown.find((e) => e.required && e.value.trim() === "");
    const next = ["name", "resource", "slug"].includes(input.name) ? shown[shown.indexOf(input) + 1] : empty;
    if (!next) return;
    event.preventDefault();
    moved = true;
    next.focus();
    next.select?.();
  });
  document.addEventListener("keypress", (event) => {
    if (moved) event.preventDefault();
  });

  // Changes of an existing rule are not stored, so leaving the page asks first.
  let changed = false;
  const unsaved = () => changed && form() && form().elements.rule.value !== "";
  document.addEventListener("input", (event) => {
    if (form()?.contains(event.target)) changed = true;
  });
  document.addEventListener("submit", (event) => {
    if (event.target === form()) changed = false;
  }, true); // before htmx sends the form
  window.addEventListener("beforeunload", (event) => {
    if (unsaved()) event.preventDefault();
  });
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.boosted && changed && isNew() && event.detail.requestConfig.verb === "get") keptDraft = true;
    if (!event.detail.boosted || !unsaved()) return;
    if (window.confirm("Leave without saving your changes?")) changed = false;
    else event.preventDefault();
  });

  // The next page says that the draft was kept.
  let keptDraft = false;
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.target !== document.body || !keptDraft) return;
    keptDraft = false;
    if (form()) return;
    const link = Object.assign(document.createElement("a"), { href: "/rules/new", textContent: "Continue" });
    const toast = Object.assign(document.createElement("p"), { className: "toast" });
    toast.setAttribute("role", "status");
    toast.append("Draft of the new rule kept. ", link);
    document.getElementById("content")?.prepend(toast);
    window.htmx?.process(toast);
  });

  // A new rule is stored as a draft in this browser until it is created, and restored in the form.
  const draftKey = "weir-rule-draft";
  const isNew = () => form() && !form().elements.rule.value;
  const fields = () => [...form().elements].filter((e) => e.name && !["tenant", "version", "rule"].includes(e.name) && e.type !== "submit");
  let slugTyped = false;

  document.addEventListener("input", (event) => {
    if (!isNew() || !form().contains(event.target)) return;
    const { name, slug } = form().elements;
    if (event.target === slug) slugTyped = slug.value !== "";
    if (event.target === name && !slugTyped) slug.value = slugOf(name.value);
    const values = fields().map((e) => [e.name, e.type === "checkbox" || e.type === "radio" ? e.checked : e.value, e.value]);
    localStorage.setItem(draftKey, JSON.stringify({ tenant: form().elements.tenant.value, values }));
    const now = new Date().toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
    form().querySelector("[data-draft]").textContent = `Draft saved at ${now}`;
  });
  document.addEventListener("submit", (event) => {
    if (event.target === form()) localStorage.removeItem(draftKey);
  });

  function slugOf(name) {
    return name.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 63);
  }

  function restore() {
    const place = form()?.querySelector("[data-draft]");
    if (!place || !isNew() || location.search || form().querySelector("[aria-invalid]")) return;
    const draft = JSON.parse(localStorage.getItem(draftKey) ?? "null");
    if (!draft || draft.tenant !== form().elements.tenant.value) return;
    for (const element of fields()) {
      const saved = draft.values.find(([name, , value]) => name === element.name && (element.type !== "radio" || value === element.value));
      if (!saved) continue;
      if (typeof saved[1] === "boolean") element.checked = saved[1];
      else element.value = saved[1];
    }
    slugTyped = form().elements.slug.value !== slugOf(form().elements.name.value);
    const discard = Object.assign(document.createElement("button"), { type: "button", className: "bare", textContent: "Discard draft" });
    discard.addEventListener("click", () => {
      localStorage.removeItem(draftKey);
      location.reload();
    });
    place.replaceChildren("Draft restored. ", discard);
    form().elements.name.dispatchEvent(new Event("change", { bubbles: true })); // updates the preview
  }
  document.addEventListener("htmx:load", (event) => {
    if (event.target === document.body || event.target.querySelector?.("#rule-form")) restore();
  });
  restore();
})();
