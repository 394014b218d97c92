/* A module for ranges of extents: cases out of a file, results to another one, and what is refused. */
import assert from "node:assert";
import { readFileSync, writeFileSync } from "node:fs";
import { load } from "./net.mjs";

const model = await load();
assert.deepEqual(model.extents, [
  { name: "image_0", low: 0, high: 9 },
  { name: "image_1", low: 1, high: 15 },
]);
assert.deepEqual(model.inputs[0].shape, ["image_0", "image_1", 6]);
assert.throws(() => model.run({}), /TypeError: no extents have been set/);
assert.throws(() => model.setExtents({ image_0: 1 }), /TypeError: extent image_1 is missing/);
assert.throws(() => model.setExtents({ image_0: 1, image_1: 1, z: 1 }), /TypeError: .* no extent z/);

const found = [];
for (const { extents, inputs } of JSON.parse(readFileSync("cases.json", "utf-8"))) {
  model.setExtents(extents);
  for (const wrong of [0, 16, 1.5])
    assert.throws(() => model.setExtents({ ...extents, image_1: wrong }), /RangeError: .* for 1 to 15/);
  if (extents.image_1 > 1) {
    const rows = [99, ...inputs.rows.slice(1)];
    assert.throws(() => model.run({ ...inputs, rows }), /RangeError: .*index 99 .* extent of 11/);
    assert.throws(() => model.run({ ...inputs, rows: [0] }), /RangeError: input rows has 1 elements/);
  }
  const results = Object.values(model.run(inputs));
  found.push(results.map((data, i) => ({ shape: model.outputs[i].shape, data: [...data] })));
}
writeFileSync("found.json", JSON.stringify(found));
