// Enhancements of the customer page. It works without this script: then a button opens it, times
// are in UTC, and a reload updates it.
"use strict";

(() => {
  const opening = document.querySelector("form[data-autosubmit]");
  if (opening) {
    opening.requestSubmit();
    return;
  }

  const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
  const full = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

  // Times in the visitor's zone, and soon ones as a wait.
  function localize() {
    for (const element of document.querySelectorAll("time[datetime]")) {
      const at = new Date(element.dateTime);
      element.title ||= element.textContent;
      const seconds = Math.ceil((at - Date.now()) / 1000);
      const today = at.toDateString() === new Date().toDateString();
      if (seconds > 0 && seconds < 60) element.textContent = `in ${seconds} s`;
      else element.textContent = today ? `at ${time.format(at)}` : full.format(at);
    }
    const zone = document.querySelector("[data-zone]");
    if (zone) zone.textContent = `${zone.dataset.zone} (${Intl.DateTimeFormat().resolvedOptions().timeZone}).`;
  }
  localize();

  // The limits are read again while somebody looks, and not while they use the form.
  const place = document.querySelector("[data-refresh]");
  if (!place) return;
  let wait = 10000;
  async function refresh() {
    if (!document.hidden && !place.contains(document.activeElement) && !place.querySelector("details[open]")) {
      try {
        const answer = await fetch(place.dataset.refresh, { headers: { Accept: "text/html" } });
        if (answer.status === 404) {
          location.reload();
          return;
        }
        if (answer.ok) {
          place.innerHTML = await answer.text();
          place.dispatchEvent(new CustomEvent("weir:load", { bubbles: true }));
          wait = 10000;
        } else {
          wait = Math.min(wait * 2, 120000);
        }
      } catch {
        wait = Math.min(wait * 2, 120000);
      }
    }
    localize();
    setTimeout(refresh, wait);
  }
  setTimeout(refresh, wait);
})();
