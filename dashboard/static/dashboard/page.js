// Starts what a page needs. Every part looks for its own attributes and does nothing where there are none.
import { startActions } from "./actions.js";
import { startDeployments } from "./deployments.js";
import { startFilters } from "./filters.js";
import { startLending } from "./lending.js";
import { startLive } from "./live.js";
import { startLog } from "./log.js";
import { startPanels } from "./panels.js";
import { startStudyForm } from "./study_form.js";
import { startTimes } from "./times.js";

// On a phone the pages' names are scrolled sideways: the present one must be seen.
document.querySelector(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
const panels = startPanels();
startActions(panels);
startLending(panels);
startDeployments(panels);
startFilters();
startTimes();
startLog();
startStudyForm();
startLive(panels);
