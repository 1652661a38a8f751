// Keeps relative times current. Writes durations as templatetags/punctual_display.py does.

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

export function durationText(seconds) {
  const left = Math.round(Math.abs(seconds));
  for (let place = 0; place < UNITS.length; place += 1) {
    const [length, name] = UNITS[place];
    if (left < length) continue;
    const whole = Math.floor(left / length);
    const smaller = UNITS[place + 1];
    const part = smaller ? Math.floor((left % length) / smaller[0]) : 0;
    return part && !(name === "min" && whole >= 10) ? `${whole} ${name} ${part} ${smaller[1]}` : `${whole} ${name}`;
  }
  return "0 s";
}

export function refreshTimes(root = document) {
  const now = Date.now();
  for (const element of root.querySelectorAll("time[datetime]")) {
    const seconds = (Date.parse(element.dateTime) - now) / 1000;
    if (Number.isNaN(seconds)) continue;
    const text = Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `in ${durationText(seconds)}` : `${durationText(seconds)} ago`;
    if (element.textContent !== text) element.textContent = text;
  }
}

export function startTimes() {
  refreshTimes();
  setInterval(() => { if (!document.hidden) refreshTimes(); }, 1000);
}
