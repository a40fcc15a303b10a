// Draws a report's charts: each when it comes near the window, in the page's colours, at the width there is.
// No eval: Vega runs its expressions through its own interpreter. Text from data only ever becomes text nodes.
"use strict";
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const specOf = (chart) => JSON.parse(chart.parentElement.querySelector("script[type='application/json']").textContent);

  // Title and notes stand above as text of the page, where they wrap; inside the picture they would be cut.
  const fitted = (spec, chart) => {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim();
    const grid = style.getPropertyValue("--grid").trim();
    const line = style.getPropertyValue("--line").trim();
    const room = Math.max(220, Math.min(chart.clientWidth || 460, 760));
    delete spec.title;
    spec.background = "transparent";
    const colours = { labelColor: ink, titleColor: ink };
    spec.config.axis = { ...spec.config.axis, ...colours, gridColor: grid, domainColor: line, tickColor: line };
    const narrow = room < 420 ? { columns: 2, labelFontSize: 12 } : {};
    spec.config.legend = { ...spec.config.legend, ...colours, ...narrow };
    spec.config.header = { ...spec.config.header, ...colours };
    spec.config.text = { ...spec.config.text, color: ink };
    if (room < 420) spec.config.axis = { ...spec.config.axis, labelFontSize: 12, titleFontSize: 12, labelLimit: 130 };
    // Names of rows leave the picture itself more than half of the room.
    const most = Math.round(0.45 * room);
    const shorten = (part) => {
      const axis = part.encoding && part.encoding.y && part.encoding.y.axis;
      if (axis && axis.labelLimit > most) axis.labelLimit = most;
      (part.layer || []).forEach(shorten);
    };
    shorten(spec);
    const parts = spec.vconcat || spec.hconcat;
    if (parts) parts.forEach((part) => { part.width = room - 90; });
    else {
      spec.width = room - 20;
      spec.autosize = { type: "fit-x", contains: "padding" };
    }
    return spec;
  };

  const draw = async (chart) => {
    chart.dataset.state = "drawing";
    try {
      const result = await vegaEmbed(chart, fitted(specOf(chart), chart), {
        mode: "vega-lite", renderer: "svg", ast: true, actions: false, defaultStyle: false,
        tooltip: { disableDefaultStyle: true },
      });
      if (chart.view) chart.view.finalize();
      chart.view = result.view;
      chart.classList.add("drawn");
    } catch (error) {
      chart.textContent = "This chart could not be drawn: " + error.message;
    }
    chart.dataset.state = "drawn";
  };

  const charts = [...document.querySelectorAll(".chart")];
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !entry.target.dataset.state) draw(entry.target);
    }
  }, { rootMargin: "400px" });
  charts.forEach((chart) => near.observe(chart));

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
    document.querySelectorAll("details.run").forEach((run) => { run.open = true; });
    charts.filter((chart) => !chart.dataset.state).forEach(draw);
  });

  // The numbers of a chart as a table, for those who want to read them or cannot see the picture.
  const valuesOf = (spec) => {
    const all = Object.values(spec.datasets || {});
    return all.reduce((most, rows) => (rows.length > most.length ? rows : most), []);
  };
  const tableOf = (rows) => {
    const table = document.createElement("table");
    const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
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
})();
