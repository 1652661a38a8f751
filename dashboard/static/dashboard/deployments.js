// Sends inputs, written as JSON, to a deployed model and shows its outputs.
import { attempt } from "./actions.js";
import { write } from "./requests.js";

function show(text) {
  const answer = document.querySelector(".ask .answer");
  answer.hidden = false;
  answer.querySelector("code").textContent = text;
}

function readInputs(text) {
  let inputs;
  try {
    inputs = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}`);
  }
  if (!Array.isArray(inputs)) throw new Error("Write a JSON list of inputs, such as [1, 2].");
  return inputs;
}

async function predict(button, panels) {
  // An old answer is none to a new question.
  document.querySelector(".ask .answer").hidden = true;
  await attempt(button, panels, async () => {
    const inputs = readInputs(document.getElementById("inputs").value);
    const begun = performance.now();
    const answer = await write(button.dataset.predict, { inputs });
    const milliseconds = Math.round(performance.now() - begun);
    const lines = answer.outputs.map((output) => JSON.stringify(output));
    show(`${lines.join("\n")}\n\n${answer.server}, generation ${answer.generation}, ${milliseconds} ms`);
  });
}

export function startDeployments(panels) {
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button[data-predict]");
    if (button) predict(button, panels);
  });
}
