// The view of graphs: boxes and edges, of which only those in sight are in the document.

const FAR = 0.3; // Below this scale boxes are one shape per color, without text.
const FAR_EDGE = 1500; // Edges longer than this are drawn lighter.
const LEAST_START = 0.2; // Graphs that fit at a smaller scale only are shown from their top.
const MAP_WIDTH = 170; // Of the small picture of the whole, at most.
const MAP_HEIGHT = 260;
const HEATS = 6; // Colors of times.
const ENGINES = ["product", "host", "collective", "update", "control"]; // Colors, the own one first.
const engineNames = ["", ...new Set(sheets.flatMap((s) => s.boxes.map((b) => b.engine)))].filter(
  (name, i) => i === 0 || name,
);
const COLORINGS = {
  family: {
    title: "kind of op",
    of: (box) => box.family,
    legend: () => Object.entries(data.families),
  },
  engine: {
    title: "engine",
    of: (box) =>
      box.role === "node" ? ENGINES[engineNames.indexOf(box.engine) % ENGINES.length] : "end",
    legend: () =>
      engineNames.map((name, i) => [
        ENGINES[i % ENGINES.length],
        name || "the engine that compiles the program",
      ]),
  },
  time: {
    title: "time",
    of: (box, most) =>
      box.role !== "node"
        ? "end"
        : `heat${Math.min(HEATS - 1, Math.ceil((HEATS - 1) * Math.sqrt(box.seconds / (most || 1))))}`,
    legend: (most) =>
      [...Array(HEATS).keys()].map((i) => [
        `heat${i}`,
        i ? `up to ${duration(most * (i / (HEATS - 1)) ** 2)}` : "none",
      ]),
  },
};
let shown = null;

function graph(section) {
  shown = new GraphView(section);
}

class GraphView {
  constructor(section) {
    this.sheet = null;
    this.coloring = "family";
    this.picked = -1;
    this.kin = new Set();
    this.found = [];
    this.at = -1;
    this.view = { x: 0, y: 0, k: 1 };
    this.stageButtons = sheets.map((s) =>
      make(
        "button",
        { role: "radio", title: s.what, onclick: () => go("graph", s.name) },
        s.name,
        make("small", {}, String(s.nodes)),
      ),
    );
    const colors = make(
      "select",
      {
        "aria-label": "Color by",
        onchange: () => {
          this.coloring = colors.value;
          this.build();
        },
      },
      Object.entries(COLORINGS).map(([name, c]) => make("option", { value: name }, c.title)),
    );
    this.search = make("input", {
      type: "search",
      placeholder: "Find op, type, line, name  /",
      "aria-label": "Find",
      size: "26",
      oninput: () => this.seek(),
      onkeydown: (e) => {
        if (e.key === "Enter") this.next(e.shiftKey ? -1 : 1);
      },
    });
    this.matches = make("span", { role: "status" });
    const zoom = (text, name, act) =>
      make("button", { "aria-label": name, title: name, onclick: act }, text);
    this.legend = make("div", { class: "legend", "aria-label": "Legend" });
    this.edges = make("path", { class: "edges" });
    this.longEdges = make("path", { class: "edges far" });
    this.tips = make("path", { class: "tips" });
    this.lit = make("path", { class: "lit" });
    this.boxes = make("g", {});
    this.world = make("g", {}, this.longEdges, this.edges, this.tips, this.lit, this.boxes);
    this.svg = make(
      "svg",
      {
        tabindex: "0",
        role: "application",
        "aria-label": "Graph. Arrow keys follow edges or pan, plus and minus zoom, 0 shows all.",
      },
      this.world,
    );
    this.side = make("aside", { class: "side", "aria-live": "polite", "aria-label": "Details" });
    this.map = make("svg", { class: "map", "aria-hidden": "true" });
    this.canvas = make("div", { class: "canvas" }, this.svg, this.map);
    section.append(
      make(
        "div",
        { class: "tools" },
        make(
          "span",
          { class: "steps", role: "radiogroup", "aria-label": "Stage" },
          this.stageButtons,
        ),
        make("label", {}, "color", colors),
        this.search,
        this.matches,
        make(
          "span",
          {},
          zoom("−", "Zoom out", () => this.zoom(0.8)),
          " ",
          zoom("+", "Zoom in", () => this.zoom(1.25)),
          " ",
          zoom("all", "Show all", () => this.fit()),
        ),
      ),
      this.legend,
      make("div", { class: "stage" }, this.canvas, this.side),
    );
    this.listen();
  }

  listen() {
    const svg = this.svg;
    let from = null,
      moved = false;
    svg.addEventListener("pointerdown", (e) => {
      from = { x: e.clientX - this.view.x, y: e.clientY - this.view.y };
      moved = false;
      svg.setPointerCapture(e.pointerId);
    });
    svg.addEventListener("pointermove", (e) => {
      if (!from) return this.hover(e);
      const x = e.clientX - from.x,
        y = e.clientY - from.y;
      moved = moved || Math.hypot(x - this.view.x, y - this.view.y) > 3;
      if (moved) {
        svg.classList.add("moving");
        hideHint();
        this.move({ ...this.view, x, y });
      }
    });
    svg.addEventListener("pointerup", (e) => {
      svg.classList.remove("moving");
      from = null;
      if (!moved) this.pick(this.under(e));
    });
    svg.addEventListener("pointerleave", hideHint);
    svg.addEventListener(
      "wheel",
      (e) => {
        e.preventDefault();
        this.zoom(Math.exp(-e.deltaY * (e.deltaMode ? 0.05 : 0.0016)), e);
      },
      { passive: false },
    );
    svg.addEventListener("keydown", (e) => this.key(e));
    for (const [i, button] of this.stageButtons.entries()) {
      button.addEventListener("keydown", (e) => {
        const to = this.stageButtons[i + { ArrowRight: 1, ArrowLeft: -1 }[e.key]];
        if (to) {
          to.focus();
          to.click();
        }
      });
    }
    const jump = (e) => {
      if (e.buttons || e.type === "pointerdown") this.jump(e);
    };
    this.map.addEventListener("pointerdown", jump);
    this.map.addEventListener("pointermove", jump);
    new ResizeObserver(() => (this.fitted ? this.fit() : this.paint())).observe(this.canvas);
    document.addEventListener("keydown", (e) => {
      if (
        e.key === "/" &&
        !this.canvas.closest("section").hidden &&
        document.activeElement !== this.search
      ) {
        e.preventDefault();
        this.search.focus();
      }
    });
  }

  key(e) {
    const pan = { ArrowUp: [0, 60], ArrowDown: [0, -60], ArrowLeft: [60, 0], ArrowRight: [-60, 0] }[
      e.key
    ];
    if (e.key === "+" || e.key === "=") this.zoom(1.25);
    else if (e.key === "-") this.zoom(0.8);
    else if (e.key === "0") this.fit();
    else if (e.key === "Escape") this.pick(-1);
    else if (e.key === "[" || e.key === "]") {
      const i = sheets.indexOf(this.sheet) + (e.key === "]" ? 1 : -1);
      if (sheets[i]) go("graph", sheets[i].name);
    } else if (pan && this.picked >= 0) this.follow(e.key);
    else if (pan) this.move({ ...this.view, x: this.view.x + pan[0], y: this.view.y + pan[1] });
    else return;
    e.preventDefault();
  }

  follow(key) {
    const near = (mine, other) =>
      this.sheet.edges.filter((e) => e[mine] === this.picked).map((e) => e[other]);
    const makers = near(1, 0),
      readers = near(0, 1);
    if (key === "ArrowUp" && makers.length) this.pick(makers[0], true);
    if (key === "ArrowDown" && readers.length) this.pick(readers[0], true);
    if (key === "ArrowLeft" || key === "ArrowRight") {
      const box = this.sheet.boxes[this.picked],
        way = key === "ArrowRight" ? 1 : -1;
      const level = this.sheet.boxes
        .map((b, i) => [(b.x - box.x) * way, i, b])
        .filter(([d, , b]) => d > 0 && Math.abs(b.y + b.h / 2 - box.y - box.h / 2) < 30);
      if (level.length) this.pick(level.sort((a, b) => a[0] - b[0])[0][1], true);
    }
  }

  // Go to a stage, and to a node of it if the address names one.
  visit([name, number]) {
    const sheet = sheets.find((s) => s.name === name) || this.sheet || compiled;
    const changed = sheet !== this.sheet;
    if (changed) {
      this.sheet = sheet;
      this.picked = -1;
      this.stageButtons.forEach((b, i) => {
        b.setAttribute("aria-checked", sheets[i] === sheet);
        b.tabIndex = sheets[i] === sheet ? 0 : -1;
      });
      this.build();
      this.start();
      this.seek();
    }
    const index =
      number === undefined
        ? -1
        : sheet.boxes.findIndex((b) => b.role === "node" && b.number === Number(number));
    if (index >= 0) return this.pick(index, true);
    if (changed) this.details();
    const kin = sheet.boxes.findIndex((b) => this.isKin(b));
    if (changed && kin >= 0) this.center(kin);
  }

  isKin(box) {
    return box.groups.some((g) => this.kin.has(g));
  }

  build() {
    const { boxes, edges } = this.sheet,
      coloring = COLORINGS[this.coloring];
    const most = Math.max(...boxes.map((b) => b.seconds), 0);
    boxes.forEach((b) => {
      b.color = `c-${coloring.of(b, most)}`;
      b.element = null;
    });
    const used = new Set(boxes.map((b) => b.color));
    this.legend.replaceChildren(
      ...legend(coloring.legend(most).filter(([c]) => used.has(`c-${c}`))),
    );
    const parts = { near: [], far: [], tips: [] };
    const quiet = this.sheet.name === "plan"; // Steps are in order; arrows are for those that were chosen.
    for (const [, , , route] of quiet ? [] : edges) {
      parts[fall(route) > FAR_EDGE ? "far" : "near"].push(way(route));
      const [x, y] = route.slice(-2);
      parts.tips.push(`M${x} ${y}l-3.5-6.5h7z`);
    }
    this.edges.setAttribute("d", parts.near.join(""));
    this.longEdges.setAttribute("d", parts.far.join(""));
    this.tips.setAttribute("d", parts.tips.join(""));
    this.paint();
  }

  // Only what can be seen is in the document, and from afar one shape per color.
  paint() {
    if (!this.sheet) return;
    const { x, y, k } = this.view;
    const { width, height } = this.size();
    this.world.setAttribute("transform", `translate(${x} ${y}) scale(${k})`);
    this.svg.classList.toggle("away", k < 0.45);
    const far = k < FAR && this.sheet.boxes.length > 60;
    const seen = (b) =>
      this.printing ||
      (b.x < (width - x) / k && b.x + b.w > -x / k && b.y < (height - y) / k && b.y + b.h > -y / k);
    this.boxes.replaceChildren(
      ...(far ? this.shapes() : this.sheet.boxes.filter(seen).map((b) => this.element(b))),
    );
    this.light();
    this.paintMap();
  }

  shapes() {
    const shapes = new Map();
    for (const b of this.sheet.boxes) {
      const color = this.found.length && !this.found.includes(b) ? `${b.color} dim` : b.color;
      shapes.set(color, (shapes.get(color) || "") + `M${b.x} ${b.y}h${b.w}v${b.h}h${-b.w}z`);
    }
    return [...shapes].map(([color, d]) => make("path", { class: `block ${color}`, d }));
  }

  element(box) {
    if (!box.element) {
      const middle = box.x + box.w / 2,
        first = box.y + (box.small ? 14 : 18);
      const lines = box.lines.map((line, i) =>
        make(
          "text",
          {
            x: middle,
            y: first + 15 * i,
            "text-anchor": "middle",
            class: i || box.role !== "node" || box.small ? "" : "head",
          },
          line,
        ),
      );
      box.element = make(
        "g",
        {},
        make("rect", {
          x: box.x,
          y: box.y,
          width: box.w,
          height: box.h,
          rx: box.role === "node" ? 4 : box.h / 2,
          class: box.color,
        }),
        lines,
      );
    }
    const marks = [
      ["small", box.small],
      ["picked", this.sheet.boxes[this.picked] === box],
      ["kin", this.isKin(box)],
      ["found", this.found.includes(box)],
      ["dim", this.found.length > 0 && !this.found.includes(box)],
    ];
    box.element.setAttribute(
      "class",
      ["box", box.role, ...marks.filter(([, yes]) => yes).map(([name]) => name)].join(" "),
    );
    return box.element;
  }

  light() {
    const edges =
      this.picked < 0
        ? []
        : this.sheet.edges.filter(([a, b]) => a === this.picked || b === this.picked);
    this.lit.setAttribute("d", edges.map((e) => way(e[3])).join(""));
  }

  size() {
    return { width: this.canvas.clientWidth || 1000, height: this.canvas.clientHeight || 600 };
  }

  // All of a graph, or the top of one that is too large to be read so.
  start() {
    this.fit();
    if (this.view.k >= LEAST_START) return;
    const k = 0.6,
      { width } = this.size(),
      top = this.sheet.boxes.reduce((a, b) => (b.y < a.y ? b : a));
    this.move({ k, x: width / 2 - (top.x + top.w / 2) * k, y: 20 });
  }

  fit() {
    const { width, height } = this.size(),
      s = this.sheet;
    if (!s) return;
    const k = Math.min(
      (width - 40) / Math.max(s.width, 1),
      (height - 40) / Math.max(s.height, 1),
      1.3,
    );
    this.move({ k, x: (width - s.width * k) / 2, y: Math.max(20, (height - s.height * k) / 2) });
    this.fitted = true;
  }

  // On paper there is all of a graph, as large as the page.
  print(yes) {
    this.printing = yes;
    if (yes) {
      const { width, height } = this.sheet;
      this.svg.setAttribute("viewBox", `-10 -10 ${width + 20} ${height + 20}`);
      this.screen = this.view;
      this.move({ x: 0, y: 0, k: 1 });
    } else {
      this.svg.removeAttribute("viewBox");
      this.move(this.screen);
    }
  }

  move(view) {
    this.view = view;
    this.fitted = false;
    this.paint();
  }

  zoom(factor, event = null) {
    const { width, height } = this.size(),
      frame = this.svg.getBoundingClientRect();
    const x = event ? event.clientX - frame.left : width / 2,
      y = event ? event.clientY - frame.top : height / 2;
    const k = Math.min(Math.max(this.view.k * factor, 0.02), 4),
      real = k / this.view.k;
    this.move({ k, x: x - (x - this.view.x) * real, y: y - (y - this.view.y) * real });
  }

  center(index) {
    const box = this.sheet.boxes[index],
      { width, height } = this.size(),
      k = Math.max(this.view.k, 0.8);
    this.move({
      k,
      x: width / 2 - (box.x + box.w / 2) * k,
      y: height / 2 - (box.y + box.h / 2) * k,
    });
  }

  // A small picture of the whole with a frame around what is seen.
  paintMap() {
    const { x, y, k } = this.view,
      { width, height } = this.size(),
      s = this.sheet;
    const all = x >= 0 && y >= 0 && x + s.width * k <= width && y + s.height * k <= height;
    this.map.classList.toggle("hidden", all);
    if (all) return;
    this.scale = Math.min(MAP_WIDTH / Math.max(s.width, 1), MAP_HEIGHT / Math.max(s.height, 1));
    this.map.style.width = `${s.width * this.scale + 8}px`;
    this.map.style.height = `${s.height * this.scale + 8}px`;
    const frame = make("rect", {
      class: "view",
      x: -x / k,
      y: -y / k,
      width: width / k,
      height: height / k,
    });
    this.map.replaceChildren(
      make("g", { transform: `translate(4 4) scale(${this.scale})` }, this.shapes(), frame),
    );
  }

  jump(event) {
    const frame = this.map.getBoundingClientRect(),
      { width, height } = this.size(),
      k = this.view.k;
    const u = (event.clientX - frame.left - 4) / this.scale,
      v = (event.clientY - frame.top - 4) / this.scale;
    this.move({ k, x: width / 2 - u * k, y: height / 2 - v * k });
  }

  under(event) {
    const frame = this.svg.getBoundingClientRect(),
      { x, y, k } = this.view;
    const u = (event.clientX - frame.left - x) / k,
      v = (event.clientY - frame.top - y) / k;
    return this.sheet.boxes.findIndex(
      (b) => u >= b.x && u <= b.x + b.w && v >= b.y && v <= b.y + b.h,
    );
  }

  hover(event) {
    const box = this.sheet.boxes[this.under(event)];
    this.svg.style.cursor = box ? "pointer" : "";
    if (!box) return hideHint();
    const work = [
      box.nbytes && size(box.nbytes),
      box.flops && `${count(box.flops)}FLOP`,
      box.seconds && duration(box.seconds),
    ]
      .filter(Boolean)
      .join(" · ");
    showHint(event, box.lines[0], [...box.results, box.place, work, box.fate]);
  }

  pick(index, center = false) {
    this.picked = index;
    const box = this.sheet.boxes[index];
    this.kin = new Set(box ? box.groups : []);
    if (box && center) this.center(index);
    else this.paint();
    this.details();
  }

  seek() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (b) =>
      [
        ...b.lines,
        ...b.names,
        ...b.results,
        ...b.inside,
        ...b.folded,
        b.place,
        b.engine,
        b.attributes,
      ]
        .join(" ")
        .toLowerCase();
    this.found = words.length
      ? this.sheet.boxes.filter((b) => words.every((w) => text(b).includes(w)))
      : [];
    this.at = -1;
    this.matches.textContent = words.length
      ? this.found.length === 1
        ? "1 match"
        : `${this.found.length} matches`
      : "";
    this.paint();
  }

  next(step) {
    if (!this.found.length) return;
    this.at = (this.at + step + this.found.length) % this.found.length;
    this.pick(this.sheet.boxes.indexOf(this.found[this.at]), true);
  }

  details() {
    const box = this.sheet.boxes[this.picked];
    this.side.replaceChildren(
      ...(box
        ? describe(this.sheet, box, this.picked, (i) => this.pick(i, true))
        : introduce(this.sheet)),
    );
  }
}
