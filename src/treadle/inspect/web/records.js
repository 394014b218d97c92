"use strict";
// The picture of the compiler: everything it shows is in the block `data`, as lists of records.
// Names in there may be anything, so they become text nodes and attributes, never markup.

const data = JSON.parse(document.getElementById("data").textContent);
// -- small things ---------------------------------------------------------------------------

function records(table) {
  return table.rows.map((row) => Object.fromEntries(table.columns.map((c, i) => [c, row[i]])));
}

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "text", "path", "line", "title"].includes(tag);
  const made = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null)
      made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((c) => c !== null && c !== ""));
  return made;
}

function scaled(value, step, units) {
  let power = 0;
  while (value >= step - 0.5 && power < units.length - 1) {
    value /= step;
    power += 1;
  }
  return `${power === 0 || value >= 99.95 ? value.toFixed(0) : value.toFixed(1)} ${units[power]}`.trim();
}
const size = (bytes) => scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
const count = (number) => scaled(number, 1000, ["", "K", "M", "G", "T"]);
function duration(s) {
  if (s < 0.9995e-6) return `${(s * 1e9).toFixed(0)} ns`;
  if (s < 1e-3) return `${(s * 1e6).toFixed(1)} us`;
  return s < 1 ? `${(s * 1e3).toFixed(2)} ms` : `${s.toFixed(2)} s`;
}
const percent = (part) => `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`;
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

function table(header, rows, classes = []) {
  const cell = (tag, value, i) =>
    make(tag, { class: classes[i] || "text", scope: tag === "th" && "col" }, value);
  return make(
    "div",
    { class: "scroll" },
    make(
      "table",
      {},
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          header.map((h, i) => cell("th", h, i)),
        ),
      ),
      make(
        "tbody",
        {},
        rows.map((row) =>
          make(
            "tr",
            {},
            row.map((value, i) =>
              value instanceof HTMLTableCellElement ? value : cell("td", value, i),
            ),
          ),
        ),
      ),
    ),
  );
}
function bar(part, second = false) {
  const made = make("span", { class: second ? "bar second" : "bar" });
  made.style.width = `${Math.max(0.5, 100 * Math.min(part, 1))}%`;
  return made;
}
const chips = (pairs) =>
  pairs.map(([text, n, about]) =>
    make(
      "span",
      { class: "chip", title: about || false },
      text,
      n > 1 ? make("b", {}, ` ×${n}`) : "",
    ),
  );
const legend = (pairs) =>
  pairs.map(([color, text]) => make("span", {}, make("i", { class: `swatch c-${color}` }), text));
const about = (text) => make("p", { class: "note" }, text);
const title = (text) => make("h2", {}, text);

const hint = make("div", { id: "hint", role: "status", hidden: true });
document.body.append(hint);
function showHint(event, head, lines) {
  hint.replaceChildren(
    make("b", {}, head),
    ...lines.filter(Boolean).map((l) => make("div", { class: "soft" }, l)),
  );
  hint.hidden = false;
  const { width, height } = hint.getBoundingClientRect();
  hint.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
  hint.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
}
const hideHint = () => {
  hint.hidden = true;
};

// -- what the records say of one another ----------------------------------------------------

const sheets = [];
for (const sheet of data.sheets) {
  // A stage that changed nothing has the graph of the one before.
  const full = sheet.like
    ? {
        ...data.sheets.find((s) => s.name === sheet.like),
        name: sheet.name,
        what: `${sheet.what}. It is as it was before`,
      }
    : sheet;
  sheets.push({ ...full, boxes: records(full.boxes) });
}
const steps = records(data.steps);
const groups = new Map(records(data.groups).map((g) => [g.number, g]));
const kernels = records(data.kernels);
const stages = records(data.stages);
const measured = data.measured !== null;
const groupTime = (g) => (g.measured === null ? g.predicted : g.measured);
const totalTime = [...groups.values()].reduce((sum, g) => sum + groupTime(g), 0) || 1;
const compiled = sheets.find((s) => s.name === "optimized");
const familyOf = new Map(
  compiled.boxes.filter((b) => b.number >= 0).map((b) => [b.number, b.family]),
);
const stepsOf = new Map();
for (const step of steps)
  for (const g of step.groups) stepsOf.set(g, [...(stepsOf.get(g) || []), step.number]);
const nodeFamily = (n) => familyOf.get(n) || "data";
const stepFamily = (s) => (s.kernel === "jump" ? "control" : nodeFamily(s.groups[0]));
for (const sheet of sheets) {
  const work = new Map(),
    own = (box) => box.flops + box.nbytes + 1;
  for (const box of sheet.boxes)
    for (const g of box.groups) work.set(g, (work.get(g) || 0) + own(box));
  for (const box of sheet.boxes) {
    const share = (g) => (groups.has(g) ? (groupTime(groups.get(g)) * own(box)) / work.get(g) : 0);
    if (!box.seconds && sheet.name !== "plan")
      box.seconds = box.groups.reduce((sum, g) => sum + share(g), 0);
  }
}

// -- views and addresses ---------------------------------------------------------------------

const views = { overview, graph, passes, memory, time, kernels: kernelView, report: null };
const TITLES = {
  overview: "Overview",
  graph: "Graph",
  passes: "Passes and decisions",
  memory: "Memory",
  time: "Steps over time",
  kernels: "Kernels",
  report: "Report",
};
const main = document.getElementById("views");
const strip = document.getElementById("tabs");
const viewOf = (name) => document.getElementById(`view-${name}`);
const drawn = new Set();
const tabs = {};
for (const name of Object.keys(views)) {
  tabs[name] = make(
    "button",
    {
      role: "tab",
      id: `tab-${name}`,
      "aria-controls": `view-${name}`,
      onclick: () => {
        location.hash = name;
      },
    },
    TITLES[name],
  );
  strip.append(tabs[name]);
  if (name !== "report")
    main.insertBefore(
      make("section", {
        id: `view-${name}`,
        role: "tabpanel",
        tabindex: "0",
        "aria-labelledby": `tab-${name}`,
        hidden: true,
      }),
      viewOf("report"),
    );
}
strip.addEventListener("keydown", (event) => {
  const names = Object.keys(views),
    at = names.indexOf(document.activeElement.id.slice(4));
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  location.hash = names[(to + names.length) % names.length];
  tabs[names[(to + names.length) % names.length]].focus();
});

function open() {
  const [name, ...rest] = location.hash.slice(1).split("/").map(decodeURIComponent);
  const chosen = name in views ? name : "overview";
  for (const other of Object.keys(views)) {
    const yes = other === chosen;
    tabs[other].setAttribute("aria-selected", yes);
    tabs[other].tabIndex = yes ? 0 : -1;
    viewOf(other).hidden = !yes;
  }
  hideHint();
  draw(chosen);
  if (chosen === "graph") shown.visit(rest);
  if (chosen === "kernels" && rest.length) openKernel(Number(rest[0]));
}
function draw(name) {
  if (drawn.has(name) || !views[name]) return;
  drawn.add(name);
  views[name](viewOf(name));
}
const go = (...parts) => {
  location.hash = parts.map(encodeURIComponent).join("/");
};
const link = (text, ...parts) =>
  make("button", { class: "link", onclick: () => go(...parts) }, text);
