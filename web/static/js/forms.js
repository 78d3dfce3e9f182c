// Messages of invalid fields, below the fields, instead of those of the browser. They look like the
// messages of the server, which checks every form again. A form that the server marks with novalidate
// is checked by the server alone.
"use strict";

(() => {
  // A page with htmx loads its parts, the first one too. The customer page has no htmx.
  document.addEventListener("htmx:load", (event) => check(event.target));
  document.addEventListener("weir:load", (event) => check(event.target));
  if (!window.htmx) check(document);

  function check(part) {
    for (const form of [...(part.matches?.("form") ? [part] : []), ...part.querySelectorAll("form")]) {
      if (form.noValidate) continue;
      form.noValidate = true; // of the browser, which would show its own messages
      form.dataset.checked = "";
    }
  }

  // A form with invalid fields is not sent. This runs before htmx sends it.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("form[data-checked]") || event.submitter?.formNoValidate) return;
    let first = null;
    for (const field of form.elements) {
      if (show(field)) first ??= field;
    }
    if (!first) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    for (let part = first.closest("details:not([open])"); part; part = part.parentElement.closest("details:not([open])")) part.open = true;
    if (event.submitter || !form.matches("[data-auto]")) first.focus(); // filters that apply while you type keep the focus
  }, true);

  // A field shows its message when somebody leaves it after a change. From then on, it is checked at
  // each change.
  const changed = new WeakSet();
  function note(event) {
    const field = event.target;
    if (!field.form?.matches("[data-checked]")) return;
    changed.add(field);
    if (event.type === "change" || field.hasAttribute("aria-invalid")) settle(field);
  }
  document.addEventListener("input", note);
  document.addEventListener("change", note);
  document.addEventListener("focusout", (event) => {
    if (changed.has(event.target)) settle(event.target);
  });

  // A message moves what is below it. While somebody presses a button there, it waits, or the button
  // would be gone from under the pointer before the click.
  let pressed = false;
  const waiting = new Set();
  document.addEventListener("pointerdown", () => {
    pressed = true;
  }, true);
  for (const end of ["pointerup", "pointercancel"]) {
    document.addEventListener(end, () => {
      pressed = false;
      setTimeout(() => { // after the click
        for (const field of waiting) if (field.isConnected) show(field);
        waiting.clear();
      });
    }, true);
  }
  function settle(field) {
    if (pressed) waiting.add(field);
    else show(field);
  }

  // A slug with data-follows is made from the field with that name, until somebody changes it.
  document.addEventListener("input", (event) => {
    const slug = event.target.form?.elements.slug;
    if (slug?.dataset?.follows !== event.target.name || !["", slug.dataset.made].includes(slug.value)) return;
    slug.value = event.target.value.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 63).replace(/^-+|-+$/g, "");
    slug.dataset.made = slug.value;
    if (slug.hasAttribute("aria-invalid")) show(slug);
  });

  // show shows or removes the message of a field, and reports whether the field is invalid.
  function show(field) {
    if (!field.willValidate) return false;
    const message = !reachable(field) ? "" : field.validity.valid ? unlisted(field) || outside(field) : problem(field);
    if (message === "" && !field.hasAttribute("aria-invalid")) return false;
    field.id ||= `field-${Math.random().toString(36).slice(2, 8)}`;
    const id = `${field.id}-error`;
    let place = document.getElementById(id);
    const others = (field.getAttribute("aria-describedby") ?? "").split(" ").filter((part) => part && part !== id);
    if (message) {
      if (!place) {
        place = Object.assign(document.createElement("p"), { id, className: "wrong" });
        const around = field.closest(".field");
        if (around) around.append(place);
        else (field.closest("label") ?? field).after(place);
      }
      place.textContent = message;
      others.push(id);
      field.setAttribute("aria-invalid", "true");
    } else {
      place?.remove();
      field.removeAttribute("aria-invalid");
    }
    if (others.length) field.setAttribute("aria-describedby", others.join(" "));
    else field.removeAttribute("aria-describedby");
    return message !== "";
  }

  // A field that another choice hides cannot be corrected. One in a closed part can: the part opens.
  const reachable = (field) => field.checkVisibility() || field.closest("details:not([open])") !== null;

  // unlisted returns the message of a field with data-listed whose value is not one of its options.
  function unlisted(field) {
    const text = field.value.trim();
    if (!field.dataset.listed || text === "") return "";
    const list = document.getElementById(field.dataset.list ?? field.getAttribute("list"));
    return !list || [...list.options].some((option) => option.value === text) ? "" : field.dataset.listed;
  }

  // outside returns the message of a field with data-whole that has no whole number, or one outside
  // its range. A choice such as the algorithm can have a range of its own for a field.
  function outside(field) {
    const text = field.value.replace(/[\s\u00a0\u202f_,]/g, "");
    if (!field.dataset.whole || text === "") return "";
    if (!/^[+-]?\d+$/.test(text)) return field.dataset.whole;
    const bound = (name) => field.form.querySelector(`:checked[data-${field.name}-${name}]`)?.getAttribute(`data-${field.name}-${name}`) ?? field.dataset[name];
    return Number(text) < Number(field.dataset.least) || Number(text) > Number(bound("most")) ? bound("range") : "";
  }

  function problem(field) {
    const { validity, min, max } = field;
    if (validity.badInput) return field.type === "number" ? "Must be a number." : "Must be a complete date and time.";
    if (validity.valueMissing) return field.dataset.missing ?? missing(field);
    if (validity.typeMismatch && field.type === "email") return "Must be an email such as name@example.com.";
    if (validity.typeMismatch) return "Must be an address such as https://example.com.";
    if (validity.rangeUnderflow || validity.rangeOverflow) {
      if (min !== "" && max !== "") return `Must be from ${min} to ${max}.`;
      return min !== "" ? `Must be at least ${min}.` : `Must be at most ${max}.`;
    }
    if (validity.patternMismatch) return field.dataset.pattern ?? "Use another value.";
    if (validity.stepMismatch) return field.type === "number" ? "Must be a whole number." : "Must be a time in whole minutes.";
    if (validity.tooShort) return `Must have at least ${field.minLength} characters.`;
    if (validity.tooLong) return `Must have at most ${field.maxLength} characters.`;
    return "Use another value.";
  }

  function missing(field) {
    if (field.type === "checkbox") return "Check this box.";
    return field.matches("select, [type=radio]") ? "Choose an option." : "Enter a value.";
  }
})();
