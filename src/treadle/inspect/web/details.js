// What the view of graphs tells beside the picture, and the ways of its edges.

const LANE = 7; // Width of the turn of an edge that goes up to the next column.

// A path through the points of an edge: curves downwards, straight up between columns.
function way(route) {
  let [x, y] = route,
    rising = false,
    text = `M${x} ${y}`;
  for (let i = 2; i < route.length; i += 2) {
    const u = route[i],
      v = route[i + 1],
      middle = (y + v) / 2;
    if (v === y) {
      text += `A${LANE / 2} ${LANE / 2} 0 0 ${rising ? 1 : 0} ${u} ${v}`;
      rising = !rising;
    } else if (rising) text += `L${u} ${v}`;
    else text += `C${x} ${middle} ${u} ${middle} ${u} ${v}`;
    [x, y] = [u, v];
  }
  return text;
}

// How far an edge leads downwards.
function fall(route) {
  let found = 0;
  for (let i = 3; i < route.length; i += 2) found += Math.max(route[i] - route[i - 2], 0);
  return found;
}

function introduce(sheet) {
  const top = sheet.boxes
    .map((b, i) => [b, i])
    .filter(([b]) => b.role === "node" && b.seconds > 0)
    .sort((a, b) => b[0].seconds - a[0].seconds)
    .slice(0, 12);
  return [
    make(
      "h2",
      {},
      `${sheet.name}: ${plural(sheet.nodes, sheet.name === "plan" ? "step" : "node")}`,
    ),
    make("div", {}, sheet.what + "."),
    make("h3", {}, "How to look"),
    make(
      "div",
      {},
      "Click a box to follow it through the stages. Drag and wheel move; [ and ] change the stage; / finds.",
    ),
    sheet.folded
      ? make(
          "div",
          {},
          `${sheet.folded === 1 ? "1 node needs" : `${sheet.folded} nodes need`} constants and weights alone. No box is drawn for that; what reads it lists it.`,
        )
      : "",
    sheet.unboxed
      ? make(
          "div",
          {},
          `No boxes for ${plural(sheet.unboxed, "input")}, weights and states mostly: they are named where they are read.`,
        )
      : "",
    top.length ? make("h3", {}, measured ? "Longest, as measured" : "Longest, as predicted") : "",
    make(
      "ul",
      {},
      top.map(([b, i]) =>
        make(
          "li",
          {},
          make(
            "button",
            { class: "link", onclick: () => shown.pick(i, true) },
            `${duration(b.seconds)}  ${b.lines[0]}  ${b.results.length ? b.lines.at(-1) : ""}`,
          ),
        ),
      ),
    ),
  ].filter(Boolean);
}

function describe(sheet, box, index, pick) {
  const list = (name, items) =>
    items.length
      ? [
          make("h3", {}, name),
          make(
            "ul",
            {},
            items.map((i) => make("li", { class: i instanceof Element ? "" : "mono" }, i)),
          ),
        ]
      : [];
  const row = (name, value) => (value ? [make("dt", {}, name), make("dd", {}, value)] : []);
  const near = (mine, other) =>
    sheet.edges
      .filter((e) => e[mine] === index)
      .map((e) => {
        const there = sheet.boxes[e[other]];
        return make(
          "button",
          { class: "link", onclick: () => pick(e[other]) },
          `${there.lines[0]}${e[2] ? `  ${e[2]}` : ""}`,
        );
      });
  const mine = box.groups.map((g) => groups.get(g)).filter(Boolean);
  const numbers = [...new Set(box.groups.flatMap((g) => stepsOf.get(g) || []))];
  const step = sheet.name === "plan" ? steps[box.number] : null;
  return [
    make("h2", {}, step ? step.label : box.lines[0]),
    make(
      "div",
      {},
      box.role === "node" ? data.families[box.family] || "" : `${box.role} of the program`,
    ),
    make(
      "dl",
      {},
      row("name", box.names.join(", ")),
      row("from", box.place),
      row("became", box.fate),
      row("engine", box.engine),
      row("result", box.nbytes && step === null ? size(box.nbytes) : ""),
      row("moves", step ? size(step.nbytes) : ""),
      row("work", box.flops ? `${count(box.flops)}FLOP` : ""),
      row(
        measured ? "time" : "predicted",
        box.seconds ? `${duration(box.seconds)}, ${percent(box.seconds / totalTime)}` : "",
      ),
      row("stream", step ? String(step.stream) : ""),
      row("with", box.attributes),
    ),
    ...list("Holds", box.inside.length ? [box.inside.join(" · ")] : []),
    ...list("Of constants and weights", box.folded.length ? [box.folded.join(" · ")] : []),
    ...list("Takes", sheet.name === "plan" ? [] : box.operands),
    ...list("Gives", box.results),
    ...list("Reads", step ? step.reads : []),
    ...list("Writes", step ? step.writes : []),
    ...list("Made by", near(1, 0)),
    ...list("Read by", near(0, 1)),
    ...list(
      sheet.name === "plan" ? "Works for" : "Runs as",
      sheet.name === "optimized"
        ? []
        : box.groups
            .filter((g) => g >= 0)
            .map((g) =>
              familyOf.has(g)
                ? link(
                    `#${g} ${groups.has(g) ? `${groups.get(g).kind}: ${brief(groups.get(g).ops)}` : "a view"}`,
                    "graph",
                    "optimized",
                    g,
                  )
                : `#${g}, once, before the first run`,
            ),
    ),
    ...list(
      "Kernels",
      mine.flatMap((g) => g.kernels).map(([name, n]) => kernelLink(name, n)),
    ),
    ...list(
      "Steps",
      sheet.name === "plan"
        ? []
        : numbers.slice(0, 12).map((n) => link(`step ${n}: ${steps[n].label}`, "graph", "plan", n)),
    ),
  ].filter(Boolean);
}
function kernelLink(name, n) {
  const at = kernels.findIndex((k) => k.name === name),
    text = n > 1 ? `${name} ×${n}` : name;
  return at < 0 ? text : link(text, "kernels", at);
}
