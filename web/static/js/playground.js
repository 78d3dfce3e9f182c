// Plays the charts of the playground and records requests. The server decides all requests and
// draws the complete chart, and this script reveals it. It runs each time that the page appears.
"use strict";

(() => {
  const root = document.getElementById("playground");
  if (!root || root.dataset.ready) return;
  root.dataset.ready = "yes";

  const form = root.querySelector("form");
  const place = root.querySelector("#stage");
  const player = root.querySelector(".player");
  const part = (name) => player.querySelector(`[data-${name}]`);
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const replayMS = 9000; // duration of a complete chart
  const handMS = 60000; // charts up to this length play in real time while the visitor sends requests
  const mostHits = 200;
  const gapMS = 150; // minimum interval between two requests to the server

  let stage, span, instants, results;
  let own = []; // instants of the visitor's requests, in order
  let now = 0;
  let speed = 1; // milliseconds of the chart per millisecond
  let playing = false;

  // Uses the new charts of the server.
  function adopt() {
    stage = place.querySelector(".stage");
    player.hidden = !stage;
    if (!stage) return;
    const numbers = (text) => (text ? text.split(",").map(Number) : []);
    span = Number(stage.dataset.span);
    instants = numbers(stage.dataset.at);
    own = numbers(stage.dataset.own);
    results = [...stage.querySelectorAll(".result")].map((result) => {
      const timeline = result.querySelector(".timeline");
      const passed = [0];
      for (const bit of timeline.dataset.passed) passed.push(passed.at(-1) + Number(bit));
      return {
        passed,
        left: numbers(timeline.dataset.left),
        veil: timeline.querySelector(".veil"),
        head: timeline.querySelector(".head"),
        tally: ["passed", "denied", "left"].map((name) => result.querySelector(`[data-${name}-count]`)),
        verdict: result.querySelector("[data-verdict]"),
      };
    });
    part("scrub").max = span;
    part("clear").hidden = own.length === 0;
    if (stage.dataset.said) part("said").textContent = stage.dataset.said;
  }

  // Shows the charts at the instant now.
  function show() {
    let low = 0;
    for (let high = instants.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (instants[middle] <= now) low = middle + 1;
      else high = middle;
    }
    const x = (1000 * now) / span;
    for (const result of results) {
      result.veil.setAttribute("x", x);
      result.veil.setAttribute("width", 1000 - x);
      result.head.setAttribute("d", now < span ? `M${x} 0V120` : "");
      const passed = result.passed[low];
      const left = result.left[Math.min(result.left.length - 1, Math.floor((now / span) * (result.left.length - 1)))];
      [passed, low - passed, left].forEach((n, i) => {
        if (result.tally[i].textContent !== String(n)) result.tally[i].textContent = n;
      });
      const verdict = low === 0 || now >= span ? "" : passed > result.passed[low - 1] ? "allowed" : "denied";
      if (result.verdict.textContent !== verdict) {
        result.verdict.textContent = verdict;
        result.verdict.className = `badge ${verdict === "denied" ? "bad" : "good"}`;
        result.verdict.hidden = verdict === "";
      }
    }
    part("scrub").value = now;
    part("clock").textContent = clock(now);
  }

  function clock(ms) {
    const units = [[86400000, "d"], [3600000, "h"], [60000, "min"]];
    const [unit, name] = units.find(([length]) => span >= 3 * length) || [1000, "s"];
    return `${(ms / unit).toFixed(1)} ${name}`;
  }

  function play(on) {
    playing = on;
    part("play").textContent = on ? "Pause" : now >= span ? "Play again" : "Play";
    if (!on) return;
    let before = performance.now();
    const step = (time) => {
      if (!playing || !root.isConnected) return;
      now = Math.min(span, now + (time - before) * speed);
      before = time;
      show();
      if (now >= span) play(false);
      else requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  function replay() {
    speed = span / replayMS;
    if (calm.matches || instants.length === 0) {
      now = instants.length === 0 ? 0 : span;
      play(false);
      show();
      return;
    }
    now = 0;
    show();
    play(true);
  }

  // The settings and requests, for an address.
  function query() {
    const values = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value !== "" && name !== "hits") values.set(name, value);
    if (own.length > 0) values.set("hits", own.join(","));
    return values.toString().replaceAll("%2C", ",");
  }

  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  let asking = false;
  let again = false;

  // Lets the server decide and draw again. If there are several requests, the last one counts.
  async function ask(then) {
    if (asking) {
      again = true;
      return;
    }
    asking = true;
    do {
      again = false;
      const asked = query();
      const response = await fetch(`/playground/stage?${asked}`).catch(() => null);
      if (!root.isConnected) return;
      if (!response) {
        window.weir?.say("The service does not respond. Check the connection and try again.");
        break;
      }
      if (response.status === 429 || response.status === 503) {
        await wait(1000 * Number(response.headers.get("Retry-After") || 1));
        again = true;
        continue;
      }
      const text = await response.text();
      if (again && query() !== asked) {
        await wait(gapMS);
        continue;
      }
      draw(text);
      if (stage) history.replaceState(history.state, "", stage.dataset.query ? `/playground?${stage.dataset.query}` : "/playground");
      await wait(gapMS);
    } while (again);
    asking = false;
    if (then && stage) then();
  }

  function draw(text) {
    const open = [...place.querySelectorAll("details[open]")].map((d) => d.id);
    const pieces = document.createElement("template");
    pieces.innerHTML = text;
    for (const piece of pieces.content.querySelectorAll("template")) {
      root.querySelector(`#${piece.dataset.for}`).replaceChildren(piece.content);
    }
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    const hits = own;
    adopt();
    own = hits;
    if (!stage) {
      play(false);
      return;
    }
    now = Math.min(now, span);
    show();
  }

  // A request is added at the current instant. At the end of the chart, it starts from the
  // beginning, without the earlier requests.
  function hit() {
    if (now >= span || !playing) {
      if (now >= span) {
        now = 0;
        own = [];
      }
      play(true);
    }
    speed = span <= handMS ? 1 : span / handMS;
    if (own.length < mostHits) own.push(Math.floor(now));
    const button = part("hit");
    button.classList.remove("struck");
    void button.offsetWidth; // restarts the animation
    button.classList.add("struck");
    ask();
  }

  let settling;
  form.addEventListener("input", (event) => {
    if (event.target.name === "window") own = [];
    clearTimeout(settling);
    settling = setTimeout(() => ask(replay), event.target.type === "number" ? 400 : 0);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(replay);
  });
  part("hit").addEventListener("click", hit);
  part("play").addEventListener("click", () => {
    if (playing) play(false);
    else if (now >= span) {
      now = 0;
      speed = span / replayMS;
      play(true);
    } else play(true);
  });
  part("scrub").addEventListener("input", () => {
    play(false);
    now = Number(part("scrub").value);
    show();
    play(false);
  });
  part("clear").addEventListener("click", () => {
    own = [];
    part("said").textContent = "Your requests were removed.";
    part("hit").focus();
    ask(replay);
  });

  for (const element of root.querySelectorAll("[data-noscript]")) element.hidden = true;
  adopt();
  if (stage) replay();
})();
