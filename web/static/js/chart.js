// Draws charts over time where there are scripts, in place of the drawing that the server made.
// The numbers stand in the page, beside the table that says the same: [data-series].
"use strict";

(() => {
  const { htmx, uPlot } = window;
  if (!htmx || !uPlot) return;

  const plots = new Map(); // uPlot by section

  const colour = (section, selector, property) => getComputedStyle(section.querySelector(selector))[property];

  function numbers(section) {
    const source = section.querySelector("[data-series]");
    if (!source) return null;
    const [at, allowed, denied, before] = JSON.parse(source.dataset.series);
    const all = allowed.map((n, i) => n + denied[i]);
    return { grain: source.dataset.grain, at, allowed, denied, before, drawn: before ? [at, all, allowed, before] : [at, all, allowed] };
  }

  // Times are those of UTC, as everywhere in these pages.
  const clock = { hour: "2-digit", minute: "2-digit" };
  const day = { day: "numeric", month: "short" };
  const format = (parts) => new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", ...parts });
  const formats = { minute: format(clock), hour: format({ ...day, ...clock }), day: format(day) };
  const short = new Intl.NumberFormat("en", { notation: "compact" });
  const long = new Intl.NumberFormat("en");

  function label(grain, seconds, step) {
    const date = new Date(seconds * 1000);
    if (grain !== "day" && step >= 86400) return formats.day.format(date);
    if (grain === "hour" && date.getUTCHours() !== 0) return formats.minute.format(date);
    return formats[grain === "hour" ? "day" : grain].format(date);
  }

  function options(section, data, place) {
    const muted = colour(section, ".legend", "color");
    const ok = colour(section, ".key.allowed", "backgroundColor");
    const bad = colour(section, ".key.denied", "backgroundColor");
    const line = getComputedStyle(section).borderTopColor;
    const font = `12px ${getComputedStyle(section).fontFamily}`;
    const bars = uPlot.paths.bars({ size: [0.8, 48], align: 1 });
    const axis = { stroke: muted, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
    const series = [{}, { fill: bad, width: 0, paths: bars, points: { show: false } }, { fill: ok, width: 0, paths: bars, points: { show: false } }];
    if (data.before) series.push({ stroke: muted, width: 1.5, dash: [4, 3], points: { show: false } });
    return {
      width: place.clientWidth,
      height: place.clientHeight,
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: Boolean(section.dataset.zoom), y: false, setScale: false } },
      scales: { y: { range: (u, low, high) => [0, Math.max(high || 0, 1) * 1.05] } },
      series,
      axes: [
        { ...axis, size: 28, grid: { show: false }, space: 70, values: (u, splits, i, space, step) => splits.map((s) => label(numbers(section).grain, s, step)) },
        { ...axis, size: 44, values: (u, splits) => splits.map((n) => (Number.isInteger(n) ? short.format(n) : "")) },
      ],
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      hooks: {
        setCursor: [(u) => tell(section, u.cursor.idx)],
        setSelect: [(u) => zoom(section, u)],
      },
    };
  }

  // What the pointer is at, in words below the chart.
  function tell(section, i) {
    const place = section.querySelector(".readout");
    const data = numbers(section);
    if (!place || !data) return;
    if (i == null || data.at[i] == null) {
      place.textContent = section.dataset.zoom ? "Drag to zoom." : "";
      return;
    }
    let text = `${formats[data.grain].format(new Date(data.at[i] * 1000))} UTC: ${long.format(data.allowed[i])} allowed, ${long.format(data.denied[i])} denied`;
    if (data.before) text += `; previous period: ${long.format(data.before[i])} checks`;
    place.textContent = text;
  }

  // A part that was dragged over becomes the page's time.
  function zoom(section, u) {
    if (!section.dataset.zoom || u.select.width < 8) return;
    const iso = (x) => new Date(u.posToVal(x, "x") * 1000).toISOString().slice(0, 16);
    const address = new URL(section.dataset.zoom, location.href);
    address.searchParams.set("from", iso(u.select.left));
    address.searchParams.set("to", iso(u.select.left + u.select.width));
    location.assign(address);
  }

  function draw(section) {
    const data = numbers(section);
    const place = section.querySelector(".plot");
    if (!data || !place) return;
    if (!plots.has(section) && !data.drawn.slice(1).some((column) => column.some((n) => n > 0))) return; // it says that there is nothing
    section.querySelector(".drawn").hidden = true;
    place.hidden = false;
    const known = plots.get(section);
    if (known) {
      known.setData(data.drawn);
      return;
    }
    if (!section.querySelector(".readout")) {
      const readout = document.createElement("p");
      readout.className = "readout";
      readout.setAttribute("aria-hidden", "true"); // the table says it
      place.after(readout);
    }
    plots.set(section, new uPlot(options(section, data, place), data.drawn, place));
    tell(section, null);
    sizes.observe(place);
  }

  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const plot = plots.get(target.closest("[data-plot]"));
      if (plot && target.clientWidth > 0) plot.setSize({ width: target.clientWidth, height: target.clientHeight });
    }
  });

  function redraw() {
    for (const [section, plot] of [...plots]) { // a copy: drawing adds to them
      plot.destroy();
      plots.delete(section);
      if (section.isConnected) draw(section);
    }
  }

  document.addEventListener("htmx:load", (event) => {
    for (const [section, plot] of plots) {
      if (section.isConnected) continue;
      plot.destroy();
      plots.delete(section);
    }
    const around = event.target.closest("[data-plot]");
    if (around) draw(around); // new numbers of an existing chart
    for (const section of event.target.querySelectorAll("[data-plot]")) draw(section);
  });
  document.addEventListener("weir:theme", () => requestAnimationFrame(redraw));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => requestAnimationFrame(redraw));
})();
