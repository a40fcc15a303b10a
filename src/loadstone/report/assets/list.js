// The list of runs: narrows while one types, shows new runs as they come, keeps what is ticked meanwhile.
// Without it the forms work as they are.
"use strict";
(() => {
  const place = document.getElementById("runs");
  const filter = document.getElementById("filter");
  const form = document.getElementById("compare");
  const said = document.getElementById("ticked");
  const button = form.querySelector("button");
  const ticked = new Map();
  let shown = "", asked = 0;
  filter.querySelector("button").hidden = true;  // the list narrows while one types

  const boxes = () => [...place.querySelectorAll("input[name=run]")];
  const nameOf = (box) => box.closest("tr").querySelector(".name").textContent;

  const tell = () => {
    const names = [...ticked.values()];
    button.disabled = ticked.size < 2;
    said.textContent = names.length === 0 ? "Tick two runs to compare them."
      : names.length === 1 ? names[0] + " is ticked; tick another."
      : names.length + " ticked: " + names.join(", ");
  };

  // What is ticked but not in the table now goes along unseen.
  form.addEventListener("submit", () => {
    form.querySelectorAll("input[type=hidden]").forEach((input) => input.remove());
    const here = new Set(boxes().map((box) => box.value));
    for (const key of ticked.keys()) {
      if (here.has(key)) continue;
      const input = document.createElement("input");
      Object.assign(input, { type: "hidden", name: "run", value: key });
      form.append(input);
    }
  });

  place.addEventListener("change", (event) => {
    const box = event.target;
    if (box.checked) ticked.set(box.value, nameOf(box));
    else ticked.delete(box.value);
    tell();
  });

  const markOf = (element) => element && place.contains(element) ? element.value || element.getAttribute("href") : null;

  const show = (text) => {
    if (text === shown) return;
    shown = text;
    const focused = markOf(document.activeElement);
    const parsed = new DOMParser().parseFromString(text, "text/html");
    place.replaceChildren(...parsed.body.childNodes);
    boxes().forEach((box) => { box.checked = ticked.has(box.value); });
    if (focused === null) return;
    const again = [...place.querySelectorAll("a, input")].find((element) => markOf(element) === focused);
    (again || place).focus({ preventScroll: true });
  };

  const query = () => {
    const fields = new URLSearchParams([...new FormData(filter)].filter(([, value]) => value));
    const here = new URLSearchParams(location.search);
    ["start", "group"].forEach((name) => { if (here.get(name)) fields.set(name, here.get(name)); });
    return fields;
  };

  const look = async () => {
    const number = ++asked;
    const fields = query();
    fields.set("part", "rows");
    try {
      const answer = await fetch("/?" + fields, { cache: "no-cache" });
      const text = await answer.text();
      if (answer.ok && number === asked) show(text);
    } catch {
      // The page's server is gone or busy: what is shown stays.
    }
  };

  let timer = 0;
  const narrow = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const url = new URL(location);
      url.search = "";
      new FormData(filter).forEach((value, name) => { if (value) url.searchParams.set(name, value); });
      history.replaceState(null, "", url);
      look();
    }, 200);
  };
  filter.addEventListener("input", narrow);
  filter.addEventListener("submit", (event) => { event.preventDefault(); narrow(); });

  boxes().filter((box) => box.checked).forEach((box) => ticked.set(box.value, nameOf(box)));
  tell();
  // A list that takes long to make is asked for less often: what is measured here needs the processor.
  const again = async () => {
    const begin = performance.now();
    if (!document.hidden) await look();
    setTimeout(again, Math.max(1000 * Number(place.dataset.everyS), 50 * (performance.now() - begin)));
  };
  setTimeout(again, 1000 * Number(place.dataset.everyS));
})();
