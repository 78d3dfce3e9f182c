// The matrix of plans with scripts: a limit is changed in its cell. Enter shows the impact, Enter
// again saves, Esc cancels. The server provides all texts.
"use strict";

(() => {
  if (window.weirPlans) return; // pages are swapped in place: this must run only once
  window.weirPlans = true;

  let open; // the cell with an open form, and its previous content

  document.addEventListener("htmx:beforeSwap", (event) => {
    const cell = event.detail.target;
    if (cell === document.body) open = undefined;
    if (!cell?.closest?.(".matrix") || cell.tagName !== "TD") return;
    close();
    open = { cell, html: cell.innerHTML };
  });

  document.addEventListener("htmx:afterSettle", (event) => {
    const input = event.detail.target?.querySelector?.("[data-cell] [name=limit]");
    if (input) {
      input.focus();
      input.select();
    }
    event.detail.target?.querySelector?.("[data-change] button")?.focus();
  });

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target.closest?.("[data-cell], [data-change]")) cancel(event);
  });
  document.addEventListener("click", (event) => {
    if (open && event.target.closest?.("[data-cancel]")) cancel(event);
  });

  function cancel(event) {
    if (!open) return;
    event.preventDefault();
    event.stopPropagation();
    const { cell } = open;
    close();
    cell.querySelector("a")?.focus();
  }

  function close() {
    const place = document.getElementById("change");
    if (place) place.replaceChildren();
    if (!open?.cell.isConnected) return;
    open.cell.innerHTML = open.html;
    open.cell.querySelector(".htmx-request")?.classList.remove("htmx-request"); // it was stored during a request
    window.htmx.process(open.cell);
    open = undefined;
  }
})();
