// llama.cpp's side of `perplexity.py`: node peer_llama_perplexity.mjs FILE THREADS WINDOWS.json
import {readFileSync} from "node:fs";
import {getLlama} from "node-llama-cpp";
const [path, threads, given] = process.argv.slice(2);
const windows = JSON.parse(readFileSync(given));
const size = windows[0].length;
const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath: path});
const context = await model.createContext({contextSize: size, threads: Number(threads), batchSize: size});
const sequence = context.getSequence();
const options = {temperature: 1, topK: 0, topP: 1, minP: 0};

const found = [];
for (const tokens of windows) {
  // For a token of the second half: the logit of the next one and the largest (`includeMax` leaves
  // it out in 3.22.1), and the sum of all weights beside it.
  const asked = (next) => ({
    logits: {filter: {tokens: [next], includeTop: 1}}, totalLogitWeight: true, options
  });
  const items = tokens.slice(0, -1).map((token, i) =>
    i < size / 2 ? token : [token, {generateNext: asked(tokens[i + 1])}]);
  await sequence.clearHistory();
  const results = await sequence.controlledEvaluate(items);
  let surprise = 0;
  for (let i = size / 2; i < size - 1; i++) {
    const {logits, totalLogitWeight} = results[i].next;
    surprise += Math.max(...logits.values()) + Math.log(totalLogitWeight) - logits.get(tokens[i + 1]);
  }
  found.push(surprise / (size / 2 - 1));
}
console.log(JSON.stringify(found));
process.exit(0);
