// The form for a new study: fills in the cluster that belongs to the jobs, and starts the runs by the REST API.
import { write } from "./requests.js";

const WHOLE = ["gpus_per_server", "limit_jobs", "reserve_servers", "seed"];
const FRACTIONS = ["slot_seconds", "failures_per_server_day", "best_effort_share"];

function chosenServers(form) {
  return form.elements.servers.value.split(",").map((part) => Number(part.trim())).filter((count) => count > 0);
}

function chosenPolicies(form) {
  return [...form.querySelectorAll("input[name=policies]:checked")].map((box) => box.value);
}

function shown(form, name) {
  const label = form.elements[name].closest("[data-for]");
  return !label || !label.hidden;
}

function bodyOf(form) {
  const live = form.elements.source.value === "live";
  const body = { source: form.elements.source.value, policies: chosenPolicies(form), servers: chosenServers(form), pauses: form.elements.pauses.value };
  if (live) body.with_declined = form.elements.with_declined.checked;
  else body.trace = form.elements.trace.value;
  if (form.elements.name.value.trim()) body.name = form.elements.name.value.trim();
  for (const name of [...WHOLE, ...FRACTIONS]) {
    const text = form.elements[name].value.trim();
    if (text !== "" && shown(form, name)) body[name] = Number(text);
  }
  return body;
}

export function startStudyForm() {
  const form = document.getElementById("study-form");
  if (!form) return;
  const problem = form.querySelector("[data-problem]");
  const button = form.querySelector("button[type=submit]");

  const count = () => {
    const runs = chosenPolicies(form).length * new Set(chosenServers(form)).size;
    form.querySelector("[data-count]").textContent = `${runs} run${runs === 1 ? "" : "s"}`;
    button.disabled = runs === 0;
  };
  // Jobs come with the cluster that they were made for; a person may change it.
  const fillIn = () => {
    const live = form.elements.source.value === "live";
    for (const label of form.querySelectorAll("[data-for]")) label.hidden = (label.dataset.for === "live") !== live;
    const known = live ? form.querySelector("input[value=live]").dataset : form.elements.trace.selectedOptions[0]?.dataset;
    if (!known) return;
    form.elements.servers.value = known.servers || "";
    form.elements.gpus_per_server.value = known.gpusPerServer || "";
    form.elements.slot_seconds.value = known.slotSeconds || "";
    form.elements.reserve_servers.value = known.reserveServers || "0";
    count();
  };

  form.addEventListener("change", (event) => { if (["source", "trace"].includes(event.target.name)) fillIn(); else count(); });
  form.addEventListener("input", count);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    problem.hidden = true;
    button.disabled = true;
    try {
      const study = await write(form.dataset.create, bodyOf(form));
      window.location.assign(`/simulations/${study.id}/`);
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      button.disabled = false;
    }
  });
  fillIn();
}
