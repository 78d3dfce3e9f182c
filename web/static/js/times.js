// Shows times in the time zone of the browser, with UTC as their title. Without this script they
// are in UTC, and say so.
"use strict";

(() => {
  const zoneName = (at) => new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(at).find((part) => part.type === "timeZoneName").value;
  const zone = zoneName(new Date());
  const format = (options) => new Intl.DateTimeFormat("en-GB", options);
  const date = { day: "numeric", month: "short", year: "numeric" };
  const clock = { hour: "2-digit", minute: "2-digit" };
  const second = { ...clock, second: "2-digit" };
  // By the names in spoken.go.
  const layouts = {
    minute: format({ ...date, ...clock }),
    second: format({ ...date, ...second }),
    short: format({ day: "numeric", month: "short", ...clock }),
    clock: format(clock),
    "clock-second": format(second),
    "clock-exact": format({ ...second, fractionalSecondDigits: 3 }),
  };
  const day = format(date);
  const shortDay = format({ day: "numeric", month: "short" });

  function showTime(element) {
    const at = new Date(element.dateTime);
    const layout = layouts[element.dataset.local];
    if (!layout || Number.isNaN(at.getTime())) return;
    element.title ||= element.textContent;
    if (!element.title.includes("UTC")) element.title += " UTC";
    element.textContent = layout.format(at);
  }

  function showTick(text) {
    const at = new Date(Number(text.dataset.at) * 1000);
    const midnight = at.getHours() === 0 && at.getMinutes() === 0;
    if (text.dataset.local === "date" || (text.dataset.local === "hour" && midnight)) text.textContent = shortDay.format(at);
    else if (text.dataset.local === "hour") text.textContent = layouts.clock.format(at);
  }

  // The days of a list are those of the browser, so its headings are set again.
  function showDays(list) {
    const heading = list.querySelector("[data-day]");
    if (!heading) return;
    const model = heading.cloneNode(true);
    for (const old of list.querySelectorAll("[data-day]")) old.remove();
    let last = "";
    for (const time of list.querySelectorAll("time[data-local='clock-second']")) {
      const now = day.format(new Date(time.dateTime));
      if (now === last) continue;
      last = now;
      const row = model.cloneNode(true);
      (row.querySelector("td") ?? row).textContent = now;
      time.closest("tr, li").before(row);
    }
  }

  // A field has local time on the page, and UTC when it is sent.
  const twoDigits = (n) => String(n).padStart(2, "0");
  function localValue(at, text) {
    const minutes = `${at.getFullYear()}-${twoDigits(at.getMonth() + 1)}-${twoDigits(at.getDate())}T${twoDigits(at.getHours())}:${twoDigits(at.getMinutes())}`;
    return minutes + text.slice(16); // seconds are the same in each zone
  }
  function showField(input) {
    const at = new Date(`${input.value}Z`);
    if (input.value && !Number.isNaN(at.getTime())) input.value = input.defaultValue = localValue(at, input.value);
  }
  document.addEventListener("formdata", (event) => {
    for (const input of event.target.querySelectorAll("input[type=datetime-local][name]")) {
      const at = new Date(input.value);
      if (!input.value || Number.isNaN(at.getTime())) continue;
      event.formData.set(input.name, at.toISOString().slice(0, 16) + input.value.slice(16));
    }
  });

  // Each element is changed once, in the moment in which it appears, so that nobody sees it change.
  function localise(root) {
    const all = (selector) => [...(root.matches?.(selector) ? [root] : []), ...root.querySelectorAll(selector)].filter((element) => !element.dataset.localised);
    const done = (element) => (element.dataset.localised = "");
    for (const element of all("time[data-local]")) showTime(element), done(element);
    for (const element of all(".plot text[data-at]")) showTick(element), done(element);
    for (const element of all("[data-zone]")) (element.textContent = `(${zone})`), done(element);
    for (const element of all("input[type=datetime-local]")) showField(element), done(element);
    for (const element of all("[data-days]")) showDays(element), done(element);
  }
  localise(document.documentElement);
  new MutationObserver((changes) => {
    for (const change of changes) for (const node of change.addedNodes) if (node.nodeType === Node.ELEMENT_NODE && node.isConnected) localise(node);
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
