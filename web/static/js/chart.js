// Makes charts usable with a pointer: a tooltip, and zooming into a part. The server
// draws the charts. Their numbers are in the page, in [data-series] beside the table.
"use strict";

(() => {
  const number = new Intl.NumberFormat("en");
  const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
  const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
  const utc = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", timeZone: "UTC" });
  const length = { minute: 60, hour: 3600, day: 86400 };

  function numbers(section) {
    const source = section.querySelector("[data-series]");
    if (!source) return null;
    const [at, allowed, denied, before] = JSON.parse(source.dataset.series);
    const marks = JSON.parse(source.dataset.marks ?? "[]");
    const missing = JSON.parse(source.dataset.missing ?? "null");
    const parts = JSON.parse(source.dataset.parts ?? "[]");
    return { parts, step: length[source.dataset.grain], grain: source.dataset.grain, at, allowed, denied, before, marks, missing };
  }

  // A day is a UTC day, so its label does not change to the local calendar.
  function label(data, i) {
    const from = new Date(data.at[i] * 1000);
    if (data.grain === "day") return utc.format(from).split(",")[0];
    const to = new Date((data.at[i] + data.step) * 1000);
    return `${day.format(from)}, ${clock.format(from)} to ${clock.format(to)}`;
  }

  function row(name, value, kind) {
    const term = document.createElement("dt");
    const text = document.createElement("dd");
    term.textContent = name;
    if (kind) term.prepend(Object.assign(document.createElement("span"), { className: `key ${kind}` }));
    text.textContent = value;
    return [term, text];
  }

  function show(section, plot, i) {
    const data = numbers(section);
    if (!data || data.at[i] === undefined) return;
    let tip = plot.parentElement.querySelector(".tip");
    if (!tip) {
      tip = Object.assign(document.createElement("div"), { className: "tip" });
      tip.setAttribute("aria-hidden", "true"); // the table has the same numbers
      section.append(tip);
    }
    const all = data.allowed[i] + data.denied[i];
    const title = Object.assign(document.createElement("b"), { textContent: label(data, i) });
    const list = document.createElement("dl");
    const missing = data.missing?.[i] ?? 0;
    if (missing > 0 && all === 0) {
      list.append(...row("Not known", `at most ${number.format(missing)}`));
    } else {
      list.append(...row("Allowed", number.format(data.allowed[i]), data.parts.length ? "" : "allowed"));
      data.parts.forEach((part, n) => {
        if (part.allowed[i] > 0) list.append(...row(part.name, number.format(part.allowed[i]), `part${n}`));
      });
      list.append(...row("Denied", number.format(data.denied[i]), "denied"));
      if (missing > 0) list.append(...row("Not known", `at most ${number.format(missing)}`));
    }
    if (all > 0) list.append(...row("Share denied", `${Math.round((1000 * data.denied[i]) / all) / 10} %`));
    if (data.before) list.append(...row("Previous period", number.format(data.before[i])));
    const hint = document.createElement("p");
    const parts = [`${utc.format(new Date(data.at[i] * 1000))} UTC`];
    if (decisionsAt(plot, data, i)) parts.push(touched ? "Tap again for decisions" : "Click for decisions");
    if (plot.dataset.zoom && !touched) parts.push("Drag to zoom");
    hint.textContent = `${parts.join(". ")}.`;
    const changes = data.marks.filter((m) => m.step === i).map((m) => Object.assign(document.createElement("p"), { textContent: `${clock.format(new Date(m.at * 1000))}: ${m.text}` }));
    tip.replaceChildren(title, list, ...changes, hint);
    tip.hidden = false;
    const box = plot.querySelector(".drawing").getBoundingClientRect();
    const around = section.getBoundingClientRect();
    const middle = box.left - around.left + ((i + 0.5) / data.at.length) * box.width;
    const left = middle > around.width / 2 ? middle - tip.offsetWidth - 16 : middle + 16;
    tip.style.left = `${Math.max(8, left)}px`;
    place(tip, plot);
  }

  // Above the plot, so that it covers no bar; within it if the screen has no space there.
  function place(tip, plot) {
    const above = plot.getBoundingClientRect().top - tip.offsetHeight - 4 > 0;
    tip.style.top = `${above ? plot.offsetTop - tip.offsetHeight - 4 : plot.offsetTop + 8}px`;
  }

  // While somebody drags, the tooltip has the selected part and its sums.
  function showPart(section, plot, from, to) {
    const data = numbers(section);
    const tip = plot.parentElement.querySelector(".tip");
    if (!tip) return;
    const [first, last] = [Math.min(from, to), Math.max(from, to)];
    const sum = (list) => list.slice(first, last + 1).reduce((a, b) => a + b, 0);
    const end = new Date((data.at[last] + data.step) * 1000);
    const until = data.grain === "day" ? label(data, last) : `${day.format(end)}, ${clock.format(end)}`;
    const title = Object.assign(document.createElement("b"), { textContent: `${label(data, first).split(" to ")[0]} to ${until}` });
    const list = document.createElement("dl");
    list.append(...row("Allowed", number.format(sum(data.allowed)), "allowed"), ...row("Denied", number.format(sum(data.denied)), "denied"));
    tip.replaceChildren(title, list, Object.assign(document.createElement("p"), { textContent: "Release to zoom." }));
    place(tip, plot);
  }

  function hide(section) {
    const tip = section.querySelector(".tip");
    if (tip) tip.hidden = true;
    for (const step of section.querySelectorAll(".step.on")) step.classList.remove("on");
  }

  function indexAt(plot, x, count) {
    const box = plot.querySelector(".drawing").getBoundingClientRect();
    return Math.max(0, Math.min(count - 1, Math.floor(((x - box.left) / box.width) * count)));
  }

  let drag = null; // the selected part while a button is pressed
  let touched = null; // the bar that a finger touched last

  function light(plot, i) {
    for (const step of plot.querySelectorAll(".step")) step.classList.toggle("on", Number(step.dataset.step) === i);
    show(plot.closest("[data-plot]"), plot, i);
  }

  // A finger shows the numbers of a bar, and leads to its decisions if it touches the bar again. It
  // does neither while it scrolls: then the browser sends no pointerup.
  document.addEventListener("pointerup", (event) => {
    if (event.pointerType === "mouse" || event.target.closest?.("a")) return;
    const plot = event.target.closest?.("[data-plot] .plot");
    for (const section of document.querySelectorAll("[data-plot]")) if (!plot || !section.contains(plot)) hide(section);
    const data = plot?.querySelector(".drawing") && numbers(plot.closest("[data-plot]"));
    if (!data) {
      touched = null;
      return;
    }
    const i = indexAt(plot, event.clientX, data.at.length);
    const decisions = touched?.plot === plot && touched.at === data.at[i] && decisionsAt(plot, data, i);
    touched = { plot, at: data.at[i] };
    if (decisions) location.assign(decisions);
    else light(plot, i);
  });

  document.addEventListener("pointermove", (event) => {
    if (event.pointerType !== "mouse") return;
    touched = null;
    const plot = event.target.closest?.(".plot");
    for (const section of document.querySelectorAll("[data-plot]")) {
      if (!plot || !section.contains(plot)) hide(section);
    }
    if (!plot?.querySelector(".drawing")) return;
    const section = plot.closest("[data-plot]");
    const data = numbers(section);
    if (!data) return;
    const i = indexAt(plot, event.clientX, data.at.length);
    light(plot, i);
    if (drag && drag.plot === plot && plot.dataset.zoom) {
      select(plot, drag.from, i, data.at.length);
      if (drag.from !== i) showPart(section, plot, drag.from, i);
    }
  });

  // The decisions of a step, while instances may still remember them.
  function decisionsAt(plot, data, i) {
    const from = data.at[i];
    if (!plot.dataset.decisions || Date.now() / 1000 - from > 48 * 3600) return null;
    const address = new URL(plot.dataset.decisions, location.href);
    address.searchParams.set("from", iso(from));
    address.searchParams.set("to", iso(from + data.step));
    return address;
  }
  const iso = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 16);

  document.addEventListener("pointerdown", (event) => {
    const plot = event.target.closest?.(".plot:is([data-zoom], [data-decisions])");
    if (!plot?.querySelector(".drawing") || event.button !== 0 || event.pointerType !== "mouse" || event.target.closest("a")) return;
    drag = { plot, from: indexAt(plot, event.clientX, numbers(plot.closest("[data-plot]")).at.length) };
    event.preventDefault();
  });

  document.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const { plot, from } = drag;
    drag = null;
    plot.querySelector(".selection")?.remove();
    const data = numbers(plot.closest("[data-plot]"));
    const to = indexAt(plot, event.clientX, data.at.length);
    if (from === to) {
      const decisions = decisionsAt(plot, data, to);
      if (decisions) location.assign(decisions);
      return;
    }
    if (!plot.dataset.zoom) return;
    const address = new URL(plot.dataset.zoom, location.href);
    address.searchParams.set("from", iso(data.at[Math.min(from, to)]));
    address.searchParams.set("to", iso(data.at[Math.max(from, to)] + data.step));
    location.assign(address);
  });

  function select(plot, from, to, count) {
    const svg = plot.querySelector(".drawing");
    let area = svg.querySelector(".selection");
    if (!area) {
      area = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      area.classList.add("selection");
      area.setAttribute("y", "4%");
      area.setAttribute("height", "85%");
      svg.append(area);
    }
    area.setAttribute("x", `${(100 * Math.min(from, to)) / count}%`);
    area.setAttribute("width", `${(100 * (Math.abs(to - from) + 1)) / count}%`);
  }

  // The tooltip replaces the titles of the bars.
  const untitle = (root) => root.querySelectorAll(".plot .step title").forEach((title) => title.remove());

  document.addEventListener("htmx:load", (event) => untitle(event.target));
})();
