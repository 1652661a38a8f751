// Deploys a completed job. Sends inputs, written as JSON, to a deployed model and shows its outputs.
import { attempt } from "./actions.js";
import { ask, element, field } from "./dialogs.js";
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

function numberInput(name, properties) {
  return element("input", { type: "number", min: "1", name, ...properties });
}

async function deploy(button, panels) {
  const count = { step: "1", value: "1", required: true };
  const servers = numberInput("servers", count);
  const least = numberInput("min", count);
  const most = numberInput("max", count);
  const target = numberInput("latency_target", { step: "any", placeholder: "none" });
  const names = button.dataset.clusters.split(" ");
  const cluster = element("select", { name: "inference_cluster" }, names.map((name) => element("option", { value: name, textContent: name })));
  const sure = await ask({
    title: `Deploy ${button.dataset.name}?`,
    text: "Inference servers answer requests with its weights. Their number follows the load within the bounds.",
    yes: "Deploy",
    build: (body) => {
      field(body, "Servers now", servers);
      field(body, "Servers at least", least);
      field(body, "Servers at most", most);
      field(body, "Latency target (ms)", target);
      if (names.length > 1) field(body, "Inference cluster", cluster);
    },
  });
  if (!sure) return;
  await attempt(button, panels, async () => {
    const made = await write("/api/v1/deployments/", {
      job: button.dataset.deploy,
      servers: { min: Number(least.value), wanted: Number(servers.value), max: Number(most.value) },
      inference_cluster: cluster.value,
      ...(target.value ? { latency_target_seconds: Number(target.value) / 1000 } : {}),
    });
    window.location.assign(`/deployments/${encodeURIComponent(made.id)}/`);
  });
}

export function startDeployments(panels) {
  document.addEventListener("click", (event) => {
    const deploying = event.target.closest?.("button[data-deploy]");
    if (deploying) deploy(deploying, panels);
    const button = event.target.closest?.("button[data-predict]");
    if (button) predict(button, panels);
  });
}
