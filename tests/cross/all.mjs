/* Runs a model on the inputs in a file, one behind the other, and writes all outputs. */
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [script, given, out] = process.argv.slice(2);
const { load } = await import(pathToFileURL(script));
const model = await load();
let bytes = readFileSync(given);
const inputs = {};
model.inputs.forEach(({ name }, number) => {
  const view = model.view(number);
  new Uint8Array(view.buffer, view.byteOffset, view.byteLength).set(bytes.subarray(0, view.byteLength));
  inputs[name] = view.slice();
  bytes = bytes.subarray(view.byteLength);
});
const found = Object.values(model.run(inputs));
writeFileSync(out, Buffer.concat(found.map((a) => Buffer.from(a.buffer, a.byteOffset, a.byteLength))));
