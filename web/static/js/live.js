// Live pages: a button pauses them, and a list does not change while it has the pointer or the
// focus. Updates that arrive in the meantime are shown afterwards.
"use strict";

(() => {
  const { htmx } = window;
  if (!htmx) return;

  const late = new Map(); // the newest delayed part, by its place

  const paused = (place) => place.closest("[data-stream]")?.querySelector("[data-pause]")?.getAttribute("aria-pressed") === "false";
  const held = (place) => place.matches("[data-hold]") && (place.matches(":hover") || place.contains(document.activeElement));

  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    const place = event.target;
    if (!paused(place) && !held(place)) {
      late.delete(place);
      return;
    }
    event.preventDefault();
    late.set(place, event.detail.data);
  });

  function release() {
    for (const [place, data] of late) {
      if (!place.isConnected) {
        late.delete(place);
      } else if (!paused(place) && !held(place)) {
        late.delete(place);
        htmx.swap(place, data, { swapStyle: "innerHTML" });
      }
    }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-pause]");
    if (!button) return;
    button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") === "false");
    release();
  });
  document.addEventListener("focusout", () => setTimeout(release));
  document.addEventListener("pointerout", () => setTimeout(release));

  // Whether events arrive. The browser reconnects automatically.
  function state(event, lost) {
    const button = event.target.closest?.("[data-stream]")?.querySelector("[data-pause]");
    if (!button) return;
    button.classList.toggle("lost", lost);
    button.textContent = lost ? "Live: not connected" : "Live";
  }
  document.addEventListener("htmx:sseOpen", (event) => state(event, false));
  document.addEventListener("htmx:sseError", (event) => state(event, true));
  document.addEventListener("htmx:sseClose", (event) => state(event, true));
})();
