// The views over steps and time: memory and streams.

// -- charts over steps and time ------------------------------------------------------------------

// A chart that a slider makes wider, so that every step can be seen.
function stretched(section, name, plot) {
  const slider = make("input", {
    type: "range",
    min: "0",
    max: "100",
    value: "0",
    "aria-label": `Width of ${name}`,
    oninput: () => fill(),
  });
  const frame = make("div", { class: "frame", role: "img", "aria-label": name, tabindex: "0" });
  const fill = () => {
    const width = Math.max((section.clientWidth || 1100) - 64, 320) * Math.exp(slider.value / 30);
    frame.replaceChildren(plot(Math.round(width)));
  };
  fill();
  addEventListener("resize", () => {
    if (!section.hidden) fill();
  });
  return [make("div", { class: "tools" }, make("label", {}, "width", slider)), frame];
}
function ticks(most, wanted) {
  const raw = most / wanted || 1,
    power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
}
function pointed(svg, find) {
  svg.addEventListener("pointermove", (e) => {
    const item = e.target.dataset ? e.target.dataset.i : undefined;
    if (item === undefined) hideHint();
    else showHint(e, ...find(Number(item)));
  });
  svg.addEventListener("pointerleave", hideHint);
  svg.addEventListener("click", (e) => {
    if (e.target.dataset && e.target.dataset.step !== undefined)
      go("graph", "plan", e.target.dataset.step);
  });
  return svg;
}
const label = (x, y, text, extra = {}) => make("text", { x, y, class: "soft", ...extra }, text);
function fitting(text, width) {
  const room = Math.floor(width / 6.8);
  return text.length <= room ? text : room > 8 ? `${text.slice(0, room - 1)}…` : "";
}

function families(names) {
  const used = new Set(names);
  return make(
    "div",
    { class: "legend bare" },
    legend(Object.entries(data.families).filter(([name]) => used.has(name))),
  );
}

function memory(section) {
  const m = data.memory,
    held = records(m.held);
  const parts = [
    ["arena", m.arena, "product", "intermediate results"],
    ["constants", m.constants, "elementwise", "data in the program"],
    ["packed", m.packed, "reduction", "weights in the form kernels like, computed once"],
    [
      "weights and state",
      m.weights,
      "control",
      "arrays that the program is given anew or in place at each run",
    ],
    ["inputs", m.inputs, "collective", "with the caller"],
    ["outputs", m.outputs, "update", "with the caller"],
  ].filter(([, n]) => n > 0);
  const total = parts.reduce((sum, [, n]) => sum + n, 0) || 1;
  const stack = make(
    "div",
    {
      class: "stack",
      role: "img",
      "aria-label": parts.map(([name, n]) => `${name} ${size(n)}`).join(", "),
    },
    parts.map(([name, n, color]) => {
      const piece = make("div", { class: `c-${color}`, title: `${name}: ${size(n)}` });
      piece.style.width = `${(100 * n) / total}%`;
      return piece;
    }),
  );
  section.append(
    title("What needs memory"),
    stack,
    make(
      "div",
      { class: "legend bare" },
      parts.map(([name, n, color, what]) =>
        make(
          "span",
          { title: what },
          make("i", { class: `swatch c-${color}` }),
          `${name} ${size(n)}`,
        ),
      ),
    ),
    title("The arena, step by step"),
    ...(held.length
      ? [
          about(
            `Each rectangle is a value from the step that writes it to the last one that reads it, at its place in the arena. Peak ${size(m.arena)}; no plan needs less than ${size(m.bound)}; without reuse it were ${size(m.naive)}. Values in the caller's arrays are not here.`,
          ),
          families(held.map((h) => nodeFamily(h.node))),
          ...stretched(section, "Arena over steps", (w) => arena(w, held, m)),
          title("Bytes in use"),
          ...stretched(section, "Bytes in use at each step", (w) => usage(w, m)),
        ]
      : [about("This program needs no arena: all it computes lies in its results.")]),
  );
}
function arena(width, held, m) {
  const high = 380,
    left = 62,
    wide = width - left - 10,
    n = steps.length;
  const x = (step) => left + (wide * step) / n,
    y = (offset) => 10 + (high * offset) / Math.max(m.arena, 1);
  const blocks = held.flatMap((h, i) => {
    const w = Math.max(x(h.last + 1) - x(h.first) - 0.6, 1),
      tall = Math.max(y(h.offset + h.nbytes) - y(h.offset), 0.8);
    const block = make("rect", {
      x: x(h.first),
      y: y(h.offset),
      width: w,
      height: tall,
      rx: 1.5,
      class: `block c-${nodeFamily(h.node)}`,
      "data-i": i,
      "data-step": h.first,
    });
    const text = tall > 13 ? fitting(h.label, w - 6) : "";
    return text
      ? [
          block,
          make("text", { x: x(h.first) + 4, y: y(h.offset) + Math.min(tall / 2 + 4, 16) }, text),
        ]
      : [block];
  });
  const svg = make(
    "svg",
    { class: "chart", width, height: high + 44 },
    ticks(m.arena, 5).flatMap((t) => [
      make("line", { class: "axis", x1: left, x2: width - 10, y1: y(t), y2: y(t) }),
      label(left - 6, y(t) + 4, size(t), { "text-anchor": "end" }),
    ]),
    blocks,
    make("line", { class: "limit", x1: left, x2: width - 10, y1: y(m.arena), y2: y(m.arena) }),
    label(width - 12, y(m.arena) - 5, `peak ${size(m.arena)}`, { "text-anchor": "end" }),
    ticks(n - 1, Math.max(wide / 90, 1))
      .filter((t) => Number.isInteger(t))
      .map((t) => label(x(t), high + 26, `${t}`)),
    label(left, high + 40, "step"),
  );
  return pointed(svg, (i) => [
    held[i].label,
    [
      `${size(held[i].nbytes)} at ${held[i].offset}`,
      `written by step ${held[i].first}: ${steps[held[i].first].label}`,
      held[i].last > held[i].first
        ? `read until step ${held[i].last}: ${steps[held[i].last].label}`
        : "used in that step only",
    ],
  ]);
}
function usage(width, m) {
  const high = 120,
    left = 62,
    wide = width - left - 10,
    n = steps.length,
    most = Math.max(m.arena, ...m.live, 1);
  const x = (step) => left + (wide * step) / n,
    y = (bytes) => 10 + high - (high * bytes) / most;
  const d = m.live.map((b, i) => `L${x(i)} ${y(b)}L${x(i + 1)} ${y(b)}`).join("");
  const svg = make(
    "svg",
    { class: "chart", width, height: high + 30 },
    make("path", { class: "curve", d: `M${left} ${y(0)}${d}L${x(n)} ${y(0)}z` }),
    make("line", { class: "limit", x1: left, x2: width - 10, y1: y(m.arena), y2: y(m.arena) }),
    label(left - 6, y(m.arena) + 4, size(m.arena), { "text-anchor": "end" }),
    label(left - 6, y(0) + 4, "0 B", { "text-anchor": "end" }),
    m.live.map((b, i) =>
      make("rect", {
        x: x(i),
        y: 10,
        width: wide / n,
        height: high,
        fill: "transparent",
        "data-i": i,
        "data-step": i,
      }),
    ),
  );
  return pointed(svg, (i) => [`step ${i}: ${size(m.live[i])}`, [steps[i].label]]);
}

function time(section) {
  const s = data.streams;
  section.append(
    title("Steps over time"),
    about(
      `${plural(s.count, "stream")} (${s.reason}); ${duration(s.makespan)} modelled${measured ? `, ${duration(data.measured)} measured in a typical run` : "; nothing was measured: --measure, or profile(), adds a second track"}.${s.events ? ` ${plural(s.events, "event")} keep streams in order.` : ""}`,
    ),
    families(steps.map(stepFamily)),
    ...stretched(section, "Steps by stream", tracks),
    title("Steps, the longest first"),
    stepTable(),
  );
}
function tracks(width) {
  const most =
    Math.max(
      data.streams.makespan,
      measured ? data.measured : 0,
      ...steps.map((s) => s.measured_start + Math.max(s.measured, 0)),
    ) || 1;
  const left = 96,
    wide = width - left - 12,
    x = (t) => left + (wide * t) / most,
    rows = data.streams.count,
    high = 34;
  const y = (stream, track) => 8 + (stream * (measured ? 2 : 1) + track) * (high + 8);
  const block = (s, start, seconds, track) => {
    const w = Math.max(x(start + seconds) - x(start) - 0.5, 0.7),
      text = fitting(s.label, w - 6);
    return [
      make("rect", {
        x: x(start),
        y: y(s.stream, track),
        width: w,
        height: high,
        rx: 2,
        class: `block c-${stepFamily(s)}`,
        "data-i": s.number,
        "data-step": s.number,
      }),
      text ? make("text", { x: x(start) + 3, y: y(s.stream, track) + 21 }, text) : "",
    ];
  };
  const bottom = y(rows - 1, measured ? 1 : 0) + high;
  const names = Array.from({ length: rows }, (_, r) => [
    label(2, y(r, 0) + 15, `stream ${r}`),
    label(2, y(r, 0) + 28, "modelled"),
    measured ? label(2, y(r, 1) + 21, "measured") : "",
  ]);
  const events = data.events.map(([a, b]) =>
    make("path", {
      class: "event",
      d: curve(
        x(steps[a].start + steps[a].seconds),
        y(steps[a].stream, 0) + high / 2,
        x(steps[b].start),
        y(steps[b].stream, 0) + high / 2,
      ),
    }),
  );
  const svg = make(
    "svg",
    { class: "chart", width, height: bottom + 24 },
    ticks(most, Math.max(wide / 110, 2)).flatMap((t) => [
      make("line", { class: "axis", x1: x(t), x2: x(t), y1: 4, y2: bottom + 4 }),
      label(
        x(t) + 2,
        bottom + 18,
        t && x(t) < width - 60 ? duration(t).replace(".00", "") : t ? "" : "0",
      ),
    ]),
    names.flat(),
    steps.flatMap((s) =>
      [
        block(s, s.start, s.seconds, 0),
        s.measured >= 0 ? block(s, s.measured_start, s.measured, 1) : [],
      ].flat(),
    ),
    events,
  );
  return pointed(svg, (i) => [
    `${i}: ${steps[i].label}`,
    [
      steps[i].kernel,
      `${duration(steps[i].seconds)} modelled${steps[i].measured >= 0 ? `, ${duration(steps[i].measured)} measured` : ""}`,
      `${count(steps[i].flops)}FLOP, ${size(steps[i].nbytes)}`,
    ],
  ]);
}
function curve(x, y, u, v) {
  const bend = Math.max(8, Math.abs(u - x) / 2);
  return `M${x} ${y}C${x + bend} ${y} ${u - bend} ${v} ${u} ${v}`;
}
function stepTable() {
  const cost = (s) => (s.measured >= 0 ? s.measured : s.seconds),
    most = Math.max(...steps.map((s) => Math.max(s.seconds, s.measured)), 1e-12);
  const ranked = [...steps]
    .filter((s) => s.kernel !== "jump")
    .sort((a, b) => cost(b) - cost(a))
    .slice(0, 40);
  const rate = (s) => (cost(s) ? `${(s.flops / cost(s) / 1e9).toFixed(1)}` : "–");
  return table(
    ["step", "ops", "kernel", "modelled", ...(measured ? ["measured"] : []), "GFLOP/s", ""],
    ranked.map((s) => [
      String(s.number),
      link(s.label, "graph", "plan", s.number),
      kernelLink(s.kernel, 1),
      duration(s.seconds),
      ...(measured ? [s.measured >= 0 ? duration(s.measured) : "–"] : []),
      rate(s),
      make(
        "div",
        {},
        make("div", {}, bar(s.seconds / most)),
        measured && s.measured >= 0 ? make("div", {}, bar(s.measured / most, true)) : "",
      ),
    ]),
    ["number", "text", "text", "number", ...(measured ? ["number"] : []), "number", "bars"],
  );
}
