/* A compiled model for browsers and Node: NAME. Written by Treadle; see docs/webassembly.md.
 *
 *   import { load } from "./NAME.mjs";
 *   const model = await load();
 *   const results = model.run({ image: new Float32Array(3 * 224 * 224) });
 */

const KINDS = {
  bool: Uint8Array,
  uint8: Uint8Array,
  int8: Int8Array,
  uint16: Uint16Array,
  int16: Int16Array,
  uint32: Uint32Array,
  int32: Int32Array,
  uint64: BigUint64Array,
  int64: BigInt64Array,
  float16: Uint16Array, // bits: not every engine has an array of them
  bfloat16: Uint16Array,
  float32: Float32Array,
  float64: Float64Array,
  complex64: Float32Array, // real and imaginary parts in turns
};

function text(memory, address) {
  const bytes = new Uint8Array(memory.buffer);
  return new TextDecoder().decode(bytes.slice(address, bytes.indexOf(0, address)));
}

/** One instance: memory of its own, one run at a time. */
export class Model {
  constructor(instance) {
    this.exports = instance.exports;
    const about = JSON.parse(text(this.exports.memory, this.exports.about()));
    this.producer = about.producer;
    this.inputs = about.inputs; // of each its name, dtype and shape
    this.outputs = about.outputs;
    this.extents = about.extents; // of each that is open its name, least and largest
    this.ready = false;
    if (!this.extents.length) this.setExtents({});
  }

  /** Choose extents, by name; inputs and outputs have their shapes from then on. */
  setExtents(given) {
    const names = this.extents.map(({ name }) => name);
    const unknown = Object.keys(given).filter((n) => !names.includes(n));
    if (unknown.length) throw new TypeError(`the model has no extent ${unknown.join(", ")}`);
    this.extents.forEach(({ name, low, high }, number) => {
      const value = given[name];
      if (value === undefined) throw new TypeError(`extent ${name} is missing`);
      if (!Number.isInteger(value) || value < low || value > high)
        throw new RangeError(`extent ${name} is ${value}, and the module is for ${low} to ${high}`);
      this.exports.extent(number, value);
    });
    const status = this.exports.settle();
    if (status) {
      const told = names.map((n) => `${n} = ${given[n]}`).join(", ");
      const why = ["", "does not take", "has sizes beyond 64 bits at", "needs more memory for"][status];
      throw new RangeError(`the model ${why} ${told || "its own shapes"}`);
    }
    [...this.inputs, ...this.outputs].forEach((end, number) => {
      end.shape = end.shape.map((_, axis) => this.exports.axis(number, axis));
    });
    this.ready = true;
  }

  /** The memory of an input, or behind them of an output, as an array of its type. */
  view(number) {
    if (!this.ready) throw new TypeError("no extents have been set: setExtents");
    const { dtype, shape } = [...this.inputs, ...this.outputs][number];
    const count = shape.reduce((n, extent) => n * extent, dtype.startsWith("complex") ? 2 : 1);
    return new KINDS[dtype](this.exports.memory.buffer, this.exports.end(number), count);
  }

  /** Results by name, for arrays by name; each has as many elements as its shape says. */
  run(given) {
    const unknown = Object.keys(given).filter((n) => !this.inputs.some((i) => i.name === n));
    if (unknown.length) throw new TypeError(`the model has no input ${unknown.join(", ")}`);
    this.inputs.forEach(({ name, dtype, shape }, number) => {
      const data = given[name];
      const view = this.view(number);
      if (data === undefined) throw new TypeError(`input ${name} is missing`);
      if (data.length !== view.length)
        throw new RangeError(`input ${name} has ${data.length} elements, not ${shape.join(" × ")}`);
      if (ArrayBuffer.isView(data) && data.constructor !== view.constructor)
        throw new TypeError(`input ${name} is a ${data.constructor.name}, not ${dtype}`);
      view.set(data);
    });
    const stop = this.exports.run();
    if (stop >= 0) {
      const op = text(this.exports.memory, this.exports.op(stop));
      const [index, extent] = [this.exports.index(stop), this.exports.limit(stop)];
      throw new RangeError(`${op}: index ${index} is out of range for an extent of ${extent}`);
    }
    const first = this.inputs.length;
    return Object.fromEntries(
      this.outputs.map(({ name }, number) => [name, this.view(first + number).slice()]),
    );
  }
}

async function bytesOf(url) {
  if (url.protocol === "file:") return (await import("node:fs/promises")).readFile(url);
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url}: ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}

/** A model from its bytes, a compiled WebAssembly.Module or an address; else from NAME.wasm. */
export async function load(source = new URL("./NAME.wasm", import.meta.url)) {
  if (source instanceof WebAssembly.Module)
    return new Model(await WebAssembly.instantiate(source, {}));
  const named = typeof source === "string" || source instanceof URL;
  const base = globalThis.location?.href ?? import.meta.url;
  const bytes = named ? await bytesOf(new URL(source, base)) : source;
  return new Model((await WebAssembly.instantiate(bytes, {})).instance);
}
