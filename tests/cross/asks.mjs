/* What the script of a module takes, gives and refuses; beside net.mjs. */
import assert from "node:assert";
import { readFile } from "node:fs/promises";
import { load } from "./net.mjs";

const module = new WebAssembly.Module(await readFile(new URL("./net.wasm", import.meta.url)));
assert.deepEqual(WebAssembly.Module.imports(module), []);
const one = await load(module);
const two = await load(await readFile(new URL("./net.wasm", import.meta.url)));
assert.deepEqual(one.inputs, [
  { name: "table", dtype: "float32", shape: [3, 2] },
  { name: "index", dtype: "int64", shape: [2] },
]);
const table = Float32Array.of(1, 2, 3, 4, 5, 6);
const first = one.run({ table, index: [2n, 0n] }).row;
assert.deepEqual([...two.run({ table, index: BigInt64Array.of(1n, 1n) }).row], [3, 4, 3, 4]);
assert.deepEqual([...first], [5, 6, 1, 2]); // a copy, and an instance of its own
const index = [0n, 0n];
assert.throws(() => one.run({ table, index: [0n, 7n] }), /RangeError: .*index 7 .* extent of 3/);
assert.deepEqual([...one.run({ table, index }).row], [1, 2, 1, 2]);
assert.throws(() => one.run({ table }), /TypeError: input index is missing/);
assert.throws(() => one.run({ table, index, more: [] }), /TypeError: .* no input more/);
assert.throws(() => one.run({ table: [1], index }), /RangeError: input table has 1 elements, not 3 × 2/);
assert.throws(() => one.run({ table: new Float64Array(6), index }), /TypeError: .* Float64Array, not/);
