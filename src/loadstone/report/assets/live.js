// A run's curves while it goes on. Asks for live.json once a second and draws it as SVG; text is only ever text nodes.
"use strict";
(() => {
  const EVERY_MS = 1000, AFTER_FAILURE_MS = 5000, SAY_EVERY_MS = 15000;
  const HEIGHT = 210, LEFT = 58, RIGHT = 10, TOP = 18, BOTTOM = 26;
  const state = document.getElementById("state");
  const said = document.getElementById("said");
  const why = document.getElementById("why");
  const table = document.getElementById("cells");
  let last = null, saidAt = 0;

  const digits = (value, count) => Number(value.toPrecision(count)).toLocaleString("en");
  const number = (value) => value === null || value === undefined ? "-" : digits(value, 4);
  const seconds = (value) => value === null || value === undefined ? "-"
    : value >= 1 ? digits(value, 3) + " s" : value >= 1e-3 ? digits(value * 1e3, 3) + " ms" : digits(value * 1e6, 3) + " µs";
  const clock = (value) => {
    const whole = Math.round(value);
    return whole < 120 ? whole + " s" : Math.floor(whole / 60) + " min" + (whole % 60 ? " " + whole % 60 + " s" : "");
  };

  const svg = (name, attributes, parent) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (parent) parent.append(element);
    return element;
  };

  const steps = (low, high, log) => {
    const found = [];
    if (log) {
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
        for (const part of [1, 2, 5]) found.push(part * 10 ** power);
      }
      const within = found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
      return within.length > 6 ? within.filter((value) => /^1e/.test(value.toExponential(0))) : within;
    }
    const rough = (high - low) / 4 || 1, base = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((part) => part * base).find((value) => value >= rough);
    for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(value);
    return found;
  };

  const draw = (key, series, format, { log = false } = {}) => {
    const place = document.getElementById("curve-" + key);
    const values = series.flatMap((one) => one.values).filter((value) => value !== null);
    if (values.length === 0) return;
    const width = Math.max(260, place.clientWidth);
    const end = series[0].values.length * last.bin_s;
    let low = 0, high = Math.max(...values) || 1;
    if (log) {
      const grid = steps(Math.min(...values) / 10, high * 10, true);
      low = Math.max(...grid.filter((value) => value <= Math.min(...values)));
      high = Math.min(...grid.filter((value) => value >= high * 0.999));
      if (low === high) high = low * 2;
    } else {
      const grid = steps(0, high, false);
      const step = grid.length > 1 ? grid[1] - grid[0] : high;
      high = Math.ceil(high / step - 1e-9) * step;
    }
    const x = (time) => LEFT + (width - LEFT - RIGHT) * time / end;
    const share = (value) => log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - share(value));
    const title = place.closest("figure").querySelector("b").textContent;
    const newest = (one) => one.values.findLast((value) => value !== null);
    const label = title + ": " + series.map((one) => one.name + " now " + format(newest(one) ?? null)
      + ", highest " + format(Math.max(...one.values.filter((value) => value !== null)))).join("; ");
    const root = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label });
    const text = (at, below, words, anchor, kind) => {
      svg("text", { x: at, y: below, "text-anchor": anchor, ...(kind ? { class: kind } : {}) }, root).textContent = words;
    };
    for (const value of steps(low, high, log)) {
      svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: "grid-line" }, root);
      text(LEFT - 6, y(value) + 4, format(value), "end");
    }
    const times = steps(0, end, false).filter((value) => width > 500 || value === 0 || value * 2 >= end * 0.9);
    for (const value of times) {
      const edge = x(value) > width - 30;
      text(edge ? width - RIGHT : x(value), HEIGHT - 8, clock(value), edge ? "end" : "middle");
    }
    let free = 0;
    for (const cell of last.cells) {
      if (cell.begin_s === undefined || cell.begin_s === null || cell.begin_s > end) continue;
      const at = x(cell.begin_s);
      svg("line", { x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM, class: "cell-line" }, root);
      const room = cell.load.length * 6.5;
      if (at < free || at + room > width) continue;
      text(at + 3, TOP - 6, cell.load, "start", "cell-text");
      free = at + room + 12;
    }
    const half = last.bin_s / 2;
    series.forEach((one, at) => {
      const kind = at === 0 ? "one" : "two";
      let part = [];
      const close = () => {
        if (part.length > 1) svg("polyline", { points: part.map((point) => point.join(",")).join(" "), class: kind }, root);
        else if (part.length === 1) svg("circle", { cx: part[0][0], cy: part[0][1], r: 2.2, class: kind }, root);
        part = [];
      };
      one.values.forEach((value, index) => {
        if (value === null) close();
        else part.push([x(index * last.bin_s + half).toFixed(1), y(value).toFixed(1)]);
      });
      close();
    });
    const legend = document.createElement("ul");
    legend.className = "legend";
    series.forEach((one, at) => {
      const item = document.createElement("li");
      const mark = svg("svg", { viewBox: "0 0 32 10", "aria-hidden": "true" }, item);
      svg("polyline", { points: "0,5 32,5", class: at === 0 ? "one" : "two" }, mark);
      item.append(one.name + ": " + format(newest(one) ?? null));
      legend.append(item);
    });
    place.replaceChildren(root, legend);
  };

  const HEADS = ["load", "requests", "ok", "failed", "under way", "output tokens", "TTFT p50", "p90", "gap p50", "p99"];
  const cells = () => {
    const line = (texts, kind, group) => {
      const tr = group.insertRow();
      texts.forEach((each, at) => {
        const cell = document.createElement(at === 0 ? "th" : kind);
        if (cell.tagName === "TH") cell.scope = kind === "th" ? "col" : "row";
        if (at > 1) cell.className = "r";
        if (kind === "td") cell.dataset.head = HEADS[at];
        cell.append(each);
        tr.append(cell);
      });
    };
    const head = document.createElement("thead"), rows = document.createElement("tbody");
    line(HEADS, "th", head);
    for (const cell of last.cells) {
      const ended = cell.sent - cell.under_way;
      const progress = document.createElement("span");
      if (cell.planned) {
        const bar = document.createElement("progress");
        bar.max = cell.planned;
        bar.value = ended;
        bar.setAttribute("aria-label", cell.load);
        progress.append(bar, " ");
      }
      progress.append(number(ended) + (cell.planned ? " of " + number(cell.planned) : ""));
      const short = cell.short ? " (" + number(cell.short) + " short)" : "";
      const dropped = cell.cancelled ? ", " + number(cell.cancelled) + " cancelled" : "";
      line([cell.load, progress, number(cell.ok + cell.short) + short, number(cell.failed) + dropped,
        number(cell.under_way), number(cell.output_tokens), seconds(cell.ttft_p50_s), seconds(cell.ttft_p90_s),
        seconds(cell.gap_p50_s), seconds(cell.gap_p99_s)], "td", rows);
    }
    table.replaceChildren(head, rows);
  };

  const show = () => {
    const curves = last.curves;
    const now = last.cells.filter((cell) => cell.sent).at(-1);
    const words = ["State: " + last.state, clock(last.elapsed_s), now ? now.load : "nothing sent yet"];
    if (last.behind) words.push("still reading the journal");
    words.push(...last.notes);
    state.textContent = words.join(" · ");
    why.textContent = last.why;
    why.hidden = !last.why;
    if (table.contains(document.activeElement) === false) cells();
    draw("tokens", [{ name: "output tokens/s", values: curves.output_tokens_per_s }], number);
    draw("requests", [{ name: "under way", values: curves.under_way },
      { name: "failed/s", values: curves.failed_per_s }], number);
    draw("ttft", [{ name: "median", values: curves.ttft_p50_s }, { name: "p90", values: curves.ttft_p90_s }],
      seconds, { log: true });
    draw("gaps", [{ name: "median", values: curves.gap_p50_s }, { name: "p99", values: curves.gap_p99_s }],
      seconds, { log: true });
    if (Date.now() - saidAt > SAY_EVERY_MS && now) {
      saidAt = Date.now();
      const ended = now.sent - now.under_way;
      said.textContent = `${now.load}: ${number(ended)}${now.planned ? " of " + number(now.planned) : ""} requests ended, `
        + `${number(now.failed)} failed, median time to first token ${seconds(now.ttft_p50_s)}.`;
    }
  };

  const look = async () => {
    let wait = EVERY_MS;
    if (!document.hidden) {
      try {
        const answer = await fetch(state.dataset.url, { cache: "no-store" });
        const told = await answer.json();
        if (!answer.ok) throw new Error(told.error || answer.statusText);
        if (!told.curves) {
          // It has records now: the same address is the report.
          said.textContent = "The run is over. Its report follows.";
          location.reload();
          return;
        }
        last = told;
        show();
        if (told.state !== "running" && !told.behind) wait = AFTER_FAILURE_MS;
      } catch (error) {
        state.textContent = "No answer from this page's server (" + error.message + "); asking again.";
        wait = AFTER_FAILURE_MS;
      }
    }
    setTimeout(look, wait);
  };
  window.addEventListener("resize", () => { if (last) show(); });
  look();
})();
