// Draws a report's charts: each when it comes near the window, in the page's colours, at the width there is.
// No eval: Vega runs its expressions through its own interpreter. Text from data only ever becomes text nodes.
"use strict";
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const textOf = (chart) => chart.parentElement.querySelector("script[type='application/json']").textContent;
  // Long data stands in the page as columns.
  const specFrom = (text) => {
    const spec = JSON.parse(text), sets = spec.datasets || {};
    for (const [name, columns] of Object.entries(sets)) if (!Array.isArray(columns)) {
      const keys = Object.keys(columns);
      sets[name] = columns[keys[0]].map((_, at) => Object.fromEntries(keys.map((key) => [key, columns[key][at]]).filter((pair) => pair[1] !== null)));
    }
    return spec;
  };
  const specOf = (chart) => specFrom(textOf(chart));
  const quantile = document.getElementById("quantile");
  let shown = "", printing = false;
  const PAPER = 335;  // the width of a chart on A4, two beside one another

  // Every row that knows its quantiles shows the chosen one; of the others than the median no interval is known.
  const chosen = (spec) => {
    const which = quantile ? quantile.value : "p50";
    const rows = Object.values(spec.datasets || {}).flat().filter((row) => row.p99 !== undefined && row.y === row.p50);
    if (which === "p50" || !rows.length) return;
    rows.forEach((row) => { row.y = row[which]; if (row.low !== undefined) row.low = row.high = row.y; });
    const most = Math.max(...rows.map((row) => row.y));
    const change = (part) => {
      const y = part.encoding && part.encoding.y;
      if (y && y.title) y.title = y.title.replace("median", which);
      if (y && y.scale && y.scale.domain && most > y.scale.domain[1]) y.scale.domain[1] = 1.1 * most;
      (part.layer || []).forEach(change);
    };
    change(spec.spec || spec);
  };
  // On a narrow page the names beside lines give way to a legend.
  const isName = (each) => Object.values(each.encoding || {}).some((one) => one.field === "top");
  const legend = (spec) => {
    if (!(spec.layer || []).some(isName)) return;
    spec.layer = spec.layer.filter((each) => !isName(each));
    spec.layer.forEach((each) => Object.entries(each.encoding || {}).forEach(([name, channel]) => {
      if (channel.legend === null && name !== "strokeDash") channel.legend = { title: null };
    }));
  };

  const each = (part, change) => { change(part); [...(part.layer || part.vconcat || []), part.spec].forEach((one) => one && each(one, change)); };
  // Vega's own ticks of logarithms stand at whole multiples of powers of ten, which may be one or none.
  const STEPS = [[1], [1, 3], [1, 2, 5], [1, 2, 3, 5, 7], [1, 1.5, 2, 3, 4, 5, 6, 8], [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9]];
  const tick = (channel) => {
    const { type, domain, base } = (channel && channel.scale) || {};
    if (type !== "log" || base || !domain || domain.length !== 2 || !(domain[0] > 0)) return;
    const ticks = STEPS.map((steps) => {
      const found = [];
      for (let power = Math.floor(Math.log10(domain[0])); 10 ** power <= domain[1]; power++)
        found.push(...steps.map((step) => step * 10 ** power).filter((at) => domain[0] <= at && at <= domain[1]));
      return found;
    });
    channel.axis = { ...channel.axis, values: ticks.find((found) => found.length > 4) || ticks[STEPS.length - 1], format: ",.6~r" };
  };
  const namesOf = (spec) => {
    const names = [];
    each(spec, (part) => ["color", "shape", "strokeDash"].forEach((channel) => {
      const { scale } = (part.encoding || {})[channel] || {};
      names.push(...((scale && scale.domain) || []).filter((name) => typeof name === "string"));
    }));
    return names;
  };

  // Title and notes stand above as text of the page, where they wrap; inside the picture they would be cut.
  const fitted = (spec, chart) => {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim();
    const grid = style.getPropertyValue("--grid").trim();
    const line = style.getPropertyValue("--line").trim();
    const room = printing ? PAPER : Math.max(220, Math.min(chart.clientWidth || 460, 760));
    let widen = 1;  // what is written beside bars needs room
    chosen(spec);
    each(spec, ({ encoding }) => { if (encoding) [encoding.x, encoding.y].forEach(tick); });
    if (room < 420) legend(spec);
    (spec.params || []).forEach((each) => { if (each.name === "shown") each.value = shown; });
    delete spec.title;
    spec.background = "transparent";
    const colours = { labelColor: ink, titleColor: ink };
    spec.config.axis = { ...spec.config.axis, ...colours, gridColor: grid, domainColor: line, tickColor: line };
    const small = room < 420;
    // As many columns of a legend as its longest name leaves room for.
    const longest = Math.max(1, ...namesOf(spec).map((name) => name.length));
    const columns = Math.max(1, Math.min(3, Math.floor((room - 45) / (longest * (small ? 5.8 : 7.5) + 30))));
    each(spec, (part) => Object.values(part.encoding || {}).forEach((channel) => { if (channel.legend) channel.legend.columns = Math.min(columns, channel.legend.columns || 3); }));
    spec.config.legend = { ...spec.config.legend, ...colours, columns, ...(small ? { labelFontSize: 11 } : {}) };
    spec.config.header = { ...spec.config.header, ...colours };
    spec.config.text = { ...spec.config.text, color: ink };
    if (small) spec.config.axis = { ...spec.config.axis, labelFontSize: 12, titleFontSize: 12, labelLimit: 130 };
    // Names of rows leave the picture itself more than half of the room: their parts stand one below the other.
    const most = Math.round(0.45 * room);
    each(spec, ({ encoding }) => {
      const { x, y, text } = encoding || {};
      if (y && y.axis && y.axis.labelLimit > most) {
        y.axis.labelLimit = most;
        const lines = Array.isArray(y.sort) ? y.sort.map((name) => name.split(" · ").length).sort() : [Infinity];
        if (small && 11 * lines[lines.length - 1] * lines.length <= spec.height) {
          const labelOffset = -5.5 * (lines[lines.length >> 1] - 1);  // the first line would stand at the row's middle
          Object.assign(y.axis, { labelExpr: "split(datum.label, ' · ')", labelOverlap: false, labelFontSize: 11, labelLineHeight: 11, labelOffset });
        }
      }
      if (small && text && text.field === "said") widen = 1.5;
      if (small && x && x.title) x.title = spec.facet ? x.title.replace(/ \(.*/, "") : x.title.length > room / 7 ? x.title.split(/ (?=\()/) : x.title;
    });
    if (widen > 1) each(spec, ({ encoding }) => {
      const scale = encoding && encoding.x && encoding.x.scale;
      if (scale && scale.domain) scale.domain[1] *= widen;
    });
    const parts = spec.vconcat || spec.hconcat;
    if (parts) parts.forEach((part) => { part.width = room - 90; });
    else if (spec.facet) {
      spec.columns = room < 420 && !printing ? 1 : 2;
      spec.spec.width = room / spec.columns - 70;
    }
    else {
      spec.width = room - 20;
      spec.autosize = { type: "fit-x", contains: "padding" };
    }
    return spec;
  };

  // Loads beside points were placed for the full width: where a chart is narrower, one over another or over a point goes.
  const thin = (chart) => {
    const kept = [...chart.querySelectorAll(".mark-symbol path")].map((mark) => mark.getBoundingClientRect());
    chart.querySelectorAll(".mark-text text").forEach((text) => {
      if (!/^\d[\d.,]*$/.test(text.textContent)) return;
      const box = text.getBoundingClientRect();
      const covered = kept.some((other) => box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom);
      if (covered) text.remove(); else kept.push(box);
    });
  };

  const draw = async (chart) => {
    chart.dataset.state = "drawing";
    try {
      const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
      const result = await vegaEmbed(chart, fitted(specFrom(textOf(chart).replaceAll('"#222222"', `"${ink}"`)), chart), {
        mode: "vega-lite", renderer: "svg", ast: true, actions: false, defaultStyle: false,
        tooltip: { disableDefaultStyle: true },
      });
      if (chart.view) chart.view.finalize();
      chart.view = result.view;
      if ((result.vgSpec.signals || []).some((each) => each.name === "shown")) result.view.addEventListener("click", pick);
      chart.classList.add("drawn");
      thin(chart);
    } catch (error) {
      chart.textContent = "This chart could not be drawn: " + error.message;
    }
    chart.dataset.state = "drawn";
  };

  // A click on a mark, or on a name in a legend, follows whose it is through all charts; a second one ends that.
  const whose = (view, item) => {
    const datum = item && item.datum;
    if (!datum) return "";
    if (datum.who) return datum.who;
    const rows = valuesOf(specOf(view.container()));
    const own = rows.find((row) => row.label === (datum.label || datum.value));
    return own ? own.who : "";
  };
  function pick(event, item) {
    const who = whose(this && this.container ? this : event.vega.view(), item);
    shown = who === shown ? "" : who;
    document.getElementById("picked").textContent = shown
      ? "Followed: " + shown + ". Click beside the lines to end." : "Click a line or its name to follow it through all charts.";
    charts.forEach((chart) => {
      if (!chart.view) return;
      try { chart.view.signal("shown", shown).runAsync(); } catch (error) { /* a chart without what is compared */ }
    });
  }

  const charts = [...document.querySelectorAll(".chart")];
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !entry.target.dataset.state) draw(entry.target);
    }
  }, { rootMargin: "400px" });
  charts.forEach((chart) => near.observe(chart));
  document.querySelectorAll("details").forEach((part) => part.addEventListener("toggle", () => {
    part.querySelectorAll(".chart").forEach((chart) => { near.unobserve(chart); near.observe(chart); });
  }));

  // A tab for each workload; without scripts they stand below one another.
  const panels = [...document.querySelectorAll(".tab[data-name]")];
  if (panels.length) {
    const bar = document.createElement("div");
    bar.className = "tabs";
    bar.setAttribute("role", "tablist");
    bar.setAttribute("aria-label", "Workloads");
    const show = (chosen) => panels.forEach((panel, at) => {
      panel.hidden = panel !== chosen;
      bar.children[at].setAttribute("aria-selected", String(panel === chosen));
    });
    panels.forEach((panel) => {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", textContent: panel.dataset.name, id: panel.id + "-name" });
      button.setAttribute("role", "tab");
      button.setAttribute("aria-controls", panel.id);
      button.addEventListener("click", () => show(panel));
      bar.append(button);
      panel.querySelector("h3").className = "paper";
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", button.id);
    });
    panels[0].before(bar);
    show(panels[0]);
  }

  // What is linked to opens; each part of the page is closed until it is asked for.
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (target) target.scrollIntoView();
  };
  window.addEventListener("hashchange", reveal);
  reveal();
  const tools = document.getElementById("tools");
  if (tools && charts.length) tools.hidden = false;
  if (quantile) quantile.addEventListener("change", () => again());

  const again = () => charts.filter((chart) => chart.dataset.state === "drawn").forEach(draw);
  dark.addEventListener("change", again);
  let width = window.innerWidth, timer = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(timer);
    timer = setTimeout(again, 200);
  });
  window.addEventListener("beforeprint", () => {
    printing = true;
    document.querySelectorAll("details.part, details.notes").forEach((part) => { part.open = true; });
    charts.filter((chart) => chart.closest(".grid, .first") && !chart.closest("details:not([open])")
      && !chart.closest("figure").matches(".part .grid figure:nth-child(n + 3)")).forEach(draw);
  });
  window.addEventListener("afterprint", () => { printing = false; again(); });

  // The numbers of a chart as a table, for those who want to read them or cannot see the picture.
  const valuesOf = (spec) => {
    const all = Object.values(spec.datasets || {});
    return all.reduce((most, rows) => (rows.length > most.length ? rows : most), []);
  };
  const tableOf = (rows) => {
    const table = document.createElement("table");
    const names = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((name) => name !== "hue" && name !== "who");
    const line = (texts, kind) => {
      const tr = table.insertRow();
      texts.forEach((text) => {
        const cell = document.createElement(kind);
        cell.textContent = text === undefined || text === null ? "" : String(text);
        tr.append(cell);
      });
    };
    line(names, "th");
    rows.slice(0, 500).forEach((row) => line(names.map((name) => row[name]), "td"));
    return table;
  };
  document.querySelectorAll("figure details").forEach((details) => {
    details.addEventListener("toggle", () => {
      const place = details.querySelector(".scroll");
      if (details.open && !place.firstChild) place.append(tableOf(valuesOf(specOf(details))));
    });
    details.querySelectorAll("button").forEach((button) => {
      button.addEventListener("click", async () => {
        const figure = button.closest("figure");
        const chart = figure.querySelector(".chart");
        if (!chart.view) await draw(chart);
        const link = document.createElement("a");
        link.href = await chart.view.toImageURL(button.dataset.kind, 3);
        link.download = figure.id + "." + button.dataset.kind;
        link.click();
      });
    });
  });

  // What is to be copied has a button; where there is no clipboard, the text is marked.
  document.querySelectorAll(".copied").forEach((place) => {
    const button = document.createElement("button"), text = place.querySelector("pre");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", () => {
      getSelection().selectAllChildren(text);
      if (navigator.clipboard) navigator.clipboard.writeText(text.textContent).then(() => { button.textContent = "Copied"; }, () => {});
    });
    place.prepend(button);
  });

  // A select of these names; `chosen` takes the number of the one that is picked.
  const choice = (label, names, chosen) => {
    const place = document.createElement("label"), select = document.createElement("select");
    names.forEach((name) => select.append(new Option(name)));
    select.addEventListener("change", () => chosen(select.selectedIndex));
    place.append(label + " ", select);
    return place;
  };
  // Of several charts of throughput, by what it is divided, one is seen.
  const leads = [...document.querySelectorAll(".tab")].map((tab) => [...tab.querySelectorAll("figure:not([id^=latencies])")]);
  const titles = [...new Set(leads.flat().map((figure) => figure.querySelector("b").textContent))];
  const lead = (at) => leads.forEach((figures) => {
    const wanted = figures.find((figure) => figure.querySelector("b").textContent === titles[at]) || figures[0];
    figures.forEach((figure) => { figure.hidden = figure !== wanted; });
  });
  if (leads.some((figures) => figures.length > 1)) {
    tools.prepend(choice("Throughput", titles.map((title) => title.replace(/ against.*/, "")), lead));
    lead(0);
  }

  // On a phone a row is a card, in which each value stands under the head of its column.
  const turn = (table) => {
    const heads = [...table.querySelectorAll("th")].map((head) => [...head.childNodes].map((part) => part.textContent));
    [...table.tBodies[0].rows].forEach((row) => [...row.cells].forEach((cell, at) => {
      cell.dataset.head = heads[at][0];
      [...cell.children].forEach((small, number) => { small.dataset.head = heads[at][number + 1]; });
    }));
    table.parentElement.classList.add("turned");
  };
  document.querySelectorAll(".few:not(.words) > table").forEach(turn);

  // Tables of loads: a click on a head sorts, and words filter.
  const SIZES = { "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600 };
  const weight = (text) => {
    const found = text.replace(/,(?=\d)/g, "").match(/-?\d+(\.\d+)?/);
    if (!found) return text === "-" ? Infinity : text;
    const unit = (text.match(/(µs|ms|min|s|h)\b/) || [])[0];
    return Number(found[0]) * (SIZES[unit] || 1);
  };
  const BELOW = /^p99|^attained|^task|^could/;  // what main columns have below their value
  const MAIN = [/^load/, /^output tok\/s/, /^TTFT/, /^TPOT/, /^SLO/, /^deployment/, /^\$\/M output/, /^right/, /^sessions/, /^cached/, /^E2E/, /^in$/, /^run/, /^out$/, /^prompts/, /^req\/s/, /^J\/token/, /^total/];
  document.querySelectorAll(".sortable").forEach((place) => {
    const heads = [...place.querySelectorAll("th")], rows = [...place.querySelectorAll("tbody tr")];
    heads.forEach((head, at) => {
      head.tabIndex = 0;
      const sort = () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const keyed = rows.map((row) => [weight(row.cells[at].firstChild ? row.cells[at].firstChild.textContent : ""), row]);
        keyed.sort(([a], [b]) => (typeof a === typeof b ? (a > b ? 1 : a < b ? -1 : 0) : typeof a === "number" ? -1 : 1) * (up ? 1 : -1));
        keyed.forEach(([, row]) => row.parentElement.append(row));
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    });
    const tools = document.createElement("p");
    tools.className = "tools";
    const words = document.createElement("input");
    Object.assign(words, { type: "search", placeholder: "Filter rows: h200 vllm …" });
    words.setAttribute("aria-label", "Filter rows");
    const count = document.createElement("span");
    count.className = "soft";
    count.setAttribute("role", "status");
    const apply = () => {
      const wanted = words.value.toLowerCase().split(/\s+/);
      rows.forEach((row) => {
        row.hidden = (workload && workload !== Number(row.dataset.place)) || !wanted.every((word) => row.textContent.toLowerCase().includes(word));
      });
      more.textContent = few ? "More columns" : "Fewer columns";
      [place.querySelector("thead tr"), ...rows].forEach((row) => [...row.cells].forEach((cell, at) => {
        cell.hidden = few && !main.has(heads[at]);
        [...cell.children].forEach((small, number) => { small.hidden = few && !BELOW.test(heads[at].children[number].textContent); });
      }));
      count.textContent = rows.filter((row) => !row.hidden).length + " of " + rows.length + " rows";
    };
    // Of what names a row, what is the same in all is none of the main columns.
    const differs = (head) => !/^(run|deployment|in|out)$/.test(head.textContent) || new Set(rows.map((row) => row.cells[head.cellIndex].textContent)).size > 1;
    const main = new Set(MAIN.map((wanted) => heads.find((head) => wanted.test(head.textContent))).filter((head) => head && differs(head)).slice(0, 8));
    const more = document.createElement("button");
    more.type = "button";
    let few = true, workload = 0;
    more.addEventListener("click", () => { few = !few; apply(); });
    words.addEventListener("input", apply);
    if (panels.length) tools.append(choice("Workload", ["all", ...panels.map((panel) => panel.dataset.name)], (at) => {
      workload = at;
      if (at) document.getElementById(panels[at - 1].id + "-name").click();
      apply();
    }));
    if (rows.length > 4) tools.append(words, count);
    if (main.size < heads.length) tools.append(more);
    place.before(tools);
    apply();
  });
})();
