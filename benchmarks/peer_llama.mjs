// llama.cpp's figures for `llm.py`: node peer_llama.mjs FILE THREADS PROMPT ANSWER SHORT STREAMS
import {getLlama} from "node-llama-cpp";
const [path, ...numbers] = process.argv.slice(2);
const [threads, prompt, answer, short, streams] = numbers.map(Number);
const tokens = (count, seed = 0) => Array.from({length: count}, (_, i) => 300 + (seed + i * 7919) % 20000);
const options = {temperature: 0, yieldEogToken: true};
const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
let begun = performance.now();
const model = await llama.loadModel({modelPath: path});
const context = await model.createContext({contextSize: prompt + 2 * answer, threads, batchSize: 512});
const found = {load: (performance.now() - begun) / 1e3};
const sequence = context.getSequence();

// Seconds until the first token of an answer, and from it to the last.
async function run(sequence, ids, count) {
  await sequence.clearHistory();
  const begun = performance.now();
  let first = 0, n = 0;
  for await (const _ of sequence.evaluate(ids, options)) {
    if (n++ === 0) first = performance.now();
    if (n === count) break;
  }
  return [(first - begun) / 1e3, (performance.now() - first) / 1e3];
}

for (let turn = 0; turn < 2; turn++) {
  const [first, rest] = await run(sequence, tokens(prompt, turn), answer + 1);
  found.prefill = prompt / first;
  found.decode = answer / rest;
  found.first = 1e3 * (await run(sequence, tokens(short, 99 + turn), 1))[0];
}
found.memory = process.resourceUsage().maxRSS / 1e3;
const many = await model.createContext({
  contextSize: short + answer + 8, threads, batchSize: 512, sequences: streams
});
const sequences = Array.from({length: streams}, () => many.getSequence());
for (let turn = 0; turn < 2; turn++) {
  // The short prompts are read once; then all answers go on together.
  await Promise.all(sequences.map((s, i) => run(s, tokens(short, 9 * i + turn), 1)));
  begun = performance.now();
  await Promise.all(sequences.map(async (s) => {
    let n = 0;
    for await (const _ of s.evaluate([300], options)) if (++n === answer) break;
  }));
  found.streams = streams * answer / ((performance.now() - begun) / 1e3);
}
console.log(JSON.stringify(found));
process.exit(0);
