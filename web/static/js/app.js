// Enhancements of pages. Every page works without this script.
//
// htmx swaps pages in place, so there is no page load to wait for. Code listens for
// "htmx:load", which fires for every part of a page that appears, including the first.
"use strict";

(() => {
  const { htmx } = window;
  if (!htmx) return;

  // An invalid form is returned with its messages, and a missing page with its own text: both are
  // shown. Only a lost connection is an error.
  htmx.config.responseHandling = [
    { code: "204", swap: false },
    { code: "...", swap: true },
  ];
  htmx.config.defaultSettleDelay = 0; // or the focus would move again while somebody presses Tab

  // The focus moves to new content, so that a screen reader reads it: the message about an action
  // or an error, or else the start of the page's content, or its heading.
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.target !== document.body || keepTyping()) return;
    const first = ["[data-focus]", "[data-drawer][open] .sheet :is(input:not([type=hidden]), select, textarea)", "[data-drawer][open] .sheet .buttons button", "[autofocus]", "#content"].map((s) => document.querySelector(s)).find(Boolean);
    // Details beside a list are in sight already, so the list does not move.
    const beside = first?.matches(".toast, .detail") && window.matchMedia("(min-width: 1081px)").matches;
    if (first) first.focus({ preventScroll: beside || !first.hasAttribute("data-focus") });
  });

  document.addEventListener("htmx:sendError", () => say("The service does not respond. Check the connection and try again."));

  function say(text) {
    const place = document.getElementById("said");
    if (place) place.textContent = text;
  }
  window.weir = { say };

  // Copies the text of the element that data-copy names.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.value ?? source.textContent);
      say("Copied.");
      const before = button.textContent;
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = before), 1500);
    } catch {
      window.getSelection().selectAllChildren(source);
      say("Press Ctrl+C to copy the selected text.");
    }
  });

  // A form with data-auto is sent when a field changes, or only when a choice changes. A text is sent
  // when nobody has typed for a moment, unless suggestions for it are open.
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-auto]");
    if (!form || event.target.matches("[role=combobox]") || (form.dataset.auto === "select" && event.target.tagName !== "SELECT")) return;
    form.requestSubmit();
  });
  // Empty fields are no filter, and do not belong into the address, unless they are required.
  document.addEventListener("htmx:configRequest", ({ detail, target }) => {
    if (!target.matches("form[method=get]")) return;
    const empty = [...new Set(detail.formData.keys())].filter((name) => detail.formData.getAll(name).every((value) => value === "") && !target.elements[name]?.required);
    for (const name of empty) detail.formData.delete(name);
  });
  let typing = 0;
  function soon(field) {
    clearTimeout(typing);
    typing = setTimeout(() => field.isConnected && !field.hasAttribute("data-choosing") && field.form.requestSubmit(), 500);
  }
  const filtering = "form[data-auto] input:is([type=text], [type=search])";
  document.addEventListener("input", (event) => {
    if (event.target.matches(filtering)) soon(event.target);
  });
  document.addEventListener("weir:closed", (event) => {
    if (event.target.matches(filtering) && event.target.value !== event.target.defaultValue) soon(event.target);
  });
  document.addEventListener("weir:chosen", (event) => {
    if (event.target.matches(filtering)) event.target.form.requestSubmit();
  });
  document.addEventListener("submit", () => clearTimeout(typing));

  // What somebody types while the page is replaced stays in the field, and is sent afterwards.
  let typed = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const field = document.activeElement;
    typed = event.detail.target === document.body && field?.id && field.matches(filtering) ? { id: field.id, text: field.value } : null;
  });
  function keepTyping() {
    const field = typed && document.getElementById(typed.id);
    if (!field?.form?.matches("[data-auto]")) return false;
    if (field.value !== typed.text) {
      field.value = typed.text;
      soon(field);
    }
    field.focus({ preventScroll: true });
    return true;
  }

  // A line at the top and dimmed contents show that an answer takes long. Parts that update
  // themselves show nothing.
  const waiting = new Set();
  function busy(element, is) {
    if (is) element.setAttribute("aria-busy", "true");
    else element.removeAttribute("aria-busy");
  }
  const asked = ({ detail }) => detail.target === document.body || (detail.elt?.closest("form, button, a") && !detail.target?.matches("[data-live]"));
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (!asked(event)) return;
    const { target, xhr } = event.detail;
    waiting.add(xhr);
    document.documentElement.classList.add("waiting");
    busy(target === document.body ? (document.getElementById("content") ?? target) : target, true);
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    const { target, xhr } = event.detail;
    if (!waiting.delete(xhr)) return;
    if (waiting.size === 0) document.documentElement.classList.remove("waiting");
    const place = target === document.body ? document.getElementById("content") : target;
    if (place) busy(place, false);
  });

  // Live parts are loaded again every few seconds while the page is visible, except a part that has
  // the focus.
  setInterval(() => {
    if (document.hidden) return;
    for (const element of document.querySelectorAll("[data-live]")) {
      if (!element.contains(document.activeElement)) htmx.trigger(element, "tick");
    }
  }, 3000);
  // What a page asks for by itself is no use of the session, or one that is left open would never end.
  // Requests of a timer have no event.
  document.addEventListener("htmx:configRequest", ({ detail }) => {
    if (!detail.triggeringEvent || detail.triggeringEvent.type === "tick") detail.headers["Weir-Repeated"] = "true";
  });
  // One that leaves the page does not wait for its answer, whose other parts have no place any more.
  document.addEventListener("htmx:beforeCleanupElement", ({ target }) => {
    if (target.matches?.("[data-live]")) htmx.trigger(target, "htmx:abort");
  });

  // The theme changes immediately, and the server stores it.
  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form[data-theme-switch]");
    if (!form) return;
    event.preventDefault();
    const theme = event.submitter.value;
    fetch(form.action, { method: "POST", body: new URLSearchParams({ theme }), redirect: "manual" });
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    for (const b of form.querySelectorAll("button")) b.setAttribute("aria-pressed", b.value === theme);
    document.dispatchEvent(new CustomEvent("weir:theme"));
  });

  // A drawer opens with the focus in its first field, closes with Escape or its button, and
  // restores the focus. A menu closes with Escape, too.
  const firstField = "input:not([type=hidden]), select, textarea, .sheet .buttons button";
  document.addEventListener("toggle", (event) => {
    const drawer = event.target;
    if (!drawer.matches?.("[data-drawer]") || !drawer.open) return;
    for (const other of document.querySelectorAll("[data-drawer][open]")) if (other !== drawer) other.open = false;
    const sheet = drawer.querySelector(".sheet");
    if (!sheet?.contains(document.activeElement)) sheet?.querySelector(firstField)?.focus();
  }, true);
  function close(details) {
    details.open = false;
    details.querySelector("summary").focus();
  }
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
    const open = document.querySelector("[data-drawer][open]") ?? document.querySelector("[data-pop][open]");
    if (open) close(open);
    else if (!event.target.matches?.("input, textarea, select")) document.querySelector("[data-close]")?.click();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-drawer-close]");
    if (button) close(button.closest("[data-drawer]"));
  });

  // A message about what was done covers a part of the page until it is closed.
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-toast-close]")) {
      event.target.closest(".toast").remove();
      document.getElementById("content")?.focus({ preventScroll: true });
    }
  });

  // Buttons that need a script are hidden until it runs, and those that replace it from then on.
  document.addEventListener("htmx:load", (event) => {
    for (const element of event.target.querySelectorAll("[data-script]")) element.hidden = false;
    for (const element of event.target.querySelectorAll("[data-noscript]")) element.hidden = true;
    if (window.matchMedia("(max-width: 720px)").matches) {
      for (const element of event.target.querySelectorAll("[data-filters]")) {
        if (!element.querySelector("[aria-invalid]")) element.open = false;
      }
    }
  });
})();
