// The views that are tables: overview, passes and decisions, kernels.

// -- overview --------------------------------------------------------------------------------

function overview(section) {
  const cards = data.facts.map(([name, figure, remark]) =>
    make(
      "div",
      { class: "card" },
      make("div", { class: "title" }, name),
      make("div", { class: figure.length > 16 ? "figure long" : "figure" }, figure),
      make("div", { class: "remark" }, remark),
    ),
  );
  const course = stages.map((s) =>
    make(
      "div",
      { class: "card" },
      make("div", { class: "title" }, s.name),
      make("div", { class: "figure" }, s.seconds === null ? "–" : duration(s.seconds)),
      make("div", { class: "remark" }, s.did),
    ),
  );
  section.append(
    make("div", { class: "cards" }, cards),
    title("Stages"),
    make("div", { class: "course" }, course),
    make(
      "div",
      { class: "columns" },
      make("div", {}, title("Where the time goes"), longest()),
      make("div", {}, title("Before and after"), sizes(), title("Engines and segments"), engines()),
    ),
  );
}
function sizes() {
  const found = records(data.sizes);
  const row = (name, show) => [name, ...found.map(show)];
  return table(
    ["", ...found.map((s) => s.graph)],
    [
      row("ops", (s) => String(s.ops)),
      row("kernels", (s) => String(s.kernels)),
      row("launches", (s) => String(s.launches)),
      row("bytes moved", (s) => size(s.nbytes)),
      row("intermediates", (s) => size(s.memory)),
    ],
    ["text", "number", "number", "number"],
  );
}
function longest() {
  const alike = new Map();
  for (const g of groups.values()) {
    const key = JSON.stringify([g.kind, g.engine, g.ops, g.kernels]);
    alike.set(key, [...(alike.get(key) || []), g]);
  }
  const time = (same) => same.reduce((sum, g) => sum + groupTime(g), 0);
  const ranked = [...alike.values()].sort((a, b) => time(b) - time(a));
  const rows = ranked
    .slice(0, 14)
    .map((same) => [
      link(brief(same[0].ops), "graph", "optimized", same[0].number),
      same.length > 1 ? `${same.length} × ${same[0].kind}` : same[0].kind,
      duration(time(same)),
      percent(time(same) / totalTime),
      bar(time(same) / totalTime),
    ]);
  const rest = ranked.slice(14).flat();
  if (rest.length)
    rows.push([
      plural(rest.length, "more group"),
      "",
      duration(time(rest)),
      percent(time(rest) / totalTime),
      bar(time(rest) / totalTime),
    ]);
  return make(
    "div",
    {},
    about(
      measured
        ? "Groups of ops that run as one, by measured time."
        : "Groups of ops that run as one, by predicted time; nothing was measured.",
    ),
    table(["ops", "kind", "time", "share", ""], rows, ["text", "text", "number", "number", "bars"]),
  );
}
function brief(ops) {
  const runs = [];
  for (const op of ops) {
    if (runs.length && runs[runs.length - 1][0] === op) runs[runs.length - 1][1] += 1;
    else runs.push([op, 1]);
  }
  const text = runs.map(([op, n]) => (n > 1 ? `${op}×${n}` : op)).join(" ");
  return text.length > 90 ? `${text.slice(0, 89)}…` : text;
}
function engines() {
  const rows = data.segments.map(([engine, parts, n, share, refused]) => [
    engine,
    parts.length > 3
      ? `${plural(parts.length, "segment")}: ${parts.slice(0, 3).join("; ")}; …`
      : parts.join("; "),
    String(n),
    percent(share),
    refused.length
      ? make(
          "div",
          {},
          refused.slice(0, 6).map((r) => make("div", { class: "more" }, r)),
        )
      : "best of those that take it",
  ]);
  return table(["engine", "segments", "groups", "time", "why not another"], rows, [
    "text",
    "text",
    "number",
    "number",
    "text",
  ]);
}

// -- passes and decisions ----------------------------------------------------------------------

function passes(section) {
  const quiet = make("input", { type: "checkbox", onchange: () => fill() });
  const place = make("div", {});
  const fill = () => {
    const rows = data.passes.filter(
      ([, before, after, , hits]) => quiet.checked || before !== after || hits.length,
    );
    place.replaceChildren(
      table(
        ["pass", "nodes", "", "time", "rules that fired"],
        rows.map(([name, before, after, seconds, hits]) => [
          name,
          `${before} → ${after}`,
          after === before ? "" : (after > before ? "+" : "−") + Math.abs(after - before),
          duration(seconds),
          make(
            "div",
            {},
            chips(
              hits.map(([rule, n]) => [
                rule,
                n,
                data.rules[rule] && `${data.rules[rule]}: ${PROMISES[data.rules[rule]]}`,
              ]),
            ),
          ),
        ]),
        ["text", "number", "number", "number", "text"],
      ),
    );
  };
  fill();
  section.append(
    title("Passes"),
    about(
      "Passes rewrite the graph in this order; those that learn from one another are repeated until nothing changes. A rule's name says what stood there before and what stands there now.",
    ),
    make("div", { class: "tools" }, make("label", {}, quiet, "those that changed nothing, too")),
    place,
    title("Ops by stage"),
    about("How often each op stands in the graph of a stage, groups looked into."),
    opTable(),
    title("Decisions"),
    about("What became a kernel, what did not, and why. Equal ones are counted."),
    decisions(),
    title("Engines and segments"),
    engines(),
  );
}
const PROMISES = {
  exact: "the same bits",
  safe: "the same but for NaN, infinities and the sign of zero",
  fast: "the same in real arithmetic",
};
function opTable() {
  const rows = data.ops.rows.map(([op, ...counts]) => [
    op,
    ...counts.map((n, i) =>
      make(
        "td",
        { class: `number ${n === 0 ? "gone" : i && n > counts[i - 1] ? "new" : ""}` },
        n ? String(n) : "·",
      ),
    ),
  ]);
  return table(data.ops.columns, rows, ["text", ...data.ops.columns.slice(1).map(() => "number")]);
}
function decisions() {
  const rows = records(data.decisions)
    .sort((a, b) => b.count - a.count)
    .map((d) => [d.stage, String(d.count), d.example, d.outcome, d.reason]);
  return rows.length
    ? table(["stage", "n", "for example", "outcome", "why"], rows, [
        "text",
        "number",
        "text",
        "text",
        "text",
      ])
    : about("None were noted.");
}

// -- kernels ---------------------------------------------------------------------------------------

function kernelView(section) {
  const cost = (k) => (k.measured >= 0 ? k.measured : k.seconds),
    total = kernels.reduce((sum, k) => sum + cost(k), 0) || 1;
  const titles = [
    "kernel",
    "ops",
    measured ? "share, measured" : "share, predicted",
    "time",
    "GFLOP/s",
    "launches",
  ];
  section.append(
    title(`${plural(kernels.length, "kernel")}, the longest first`),
    about(
      "Open one to read it in the language that all generators write; the text of those that run once, before the first run, is here as well.",
    ),
    make(
      "div",
      { class: "kernels" },
      make(
        "div",
        { class: "titles", "aria-hidden": "true" },
        titles.map((t, i) =>
          make(
            "span",
            {
              class: i > 2 ? (i === 3 ? "right" : "right wide") : i === 1 || i === 2 ? "wide" : "",
            },
            t,
          ),
        ),
      ),
      kernels.map((k, i) => {
        const body = make("div", {});
        const text =
          k.text ||
          `${k.length} lines are too many for this page; TREADLE_DUMP=kernels writes them to files.`;
        const made = make(
          "details",
          {
            class: "kernel",
            id: `kernel-${i}`,
            ontoggle: () => {
              if (made.open && !body.firstChild)
                body.append(
                  make("div", { class: "remark" }, k.labels.join(", ")),
                  make("pre", { tabindex: "0" }, text),
                );
            },
          },
          make(
            "summary",
            {},
            make("span", { class: "name mono" }, k.name),
            make("span", { class: "wide" }, fitted(k.labels.join(", "))),
            make("span", { class: "wide" }, k.launches ? bar(cost(k) / total) : "once"),
            make("span", { class: "right" }, k.launches ? `${duration(cost(k))}` : "–"),
            make(
              "span",
              { class: "right wide" },
              cost(k) ? (k.flops / cost(k) / 1e9).toFixed(1) : "–",
            ),
            make("span", { class: "right wide" }, String(k.launches)),
          ),
          body,
        );
        return made;
      }),
    ),
  );
}
const fitted = (text) => (text.length > 110 ? `${text.slice(0, 109)}…` : text);
function openKernel(index) {
  const found = document.getElementById(`kernel-${index}`);
  if (found) {
    found.open = true;
    found.scrollIntoView({ block: "start" });
  }
}
