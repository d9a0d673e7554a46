// Draws the run that is shown, when it is first shown.

import "uplot/dist/uPlot.min.css";
import "./page.css";
import { Icicle } from "./icicle";
import { type Packed, unpack } from "./packed";
import { Chart } from "./chart";
import { makeFilter } from "./filter";
import { makeResults } from "./results";
import { Segments } from "./segments";

const articles = [...document.querySelectorAll<HTMLElement>("article.run")];
const tabs = [...document.querySelectorAll<HTMLButtonElement>("button.tab")];
const drawn = new Set<number>();

function draw(number: number, packed: Packed): void {
  if (drawn.has(number)) return;
  drawn.add(number);
  const { timeline, modules, segments } = packed.runs[number];
  const held = (event: number | null) => history.replaceState(null, "", `#run-${number}${event === null ? "" : `@${event}`}`);
  const chart = new Chart(articles[number].querySelector<HTMLElement>("[data-timeline]")!, timeline, packed, held);
  const [, event] = location.hash.split("@");
  if (event && location.hash.startsWith(`#run-${number}@`)) chart.hold(Number(event));
  if (segments) new Segments(articles[number].querySelector<HTMLElement>("[data-segments]")!, segments, packed);
  new Icicle(articles[number].querySelector<HTMLElement>("[data-modules]")!, modules, packed);
}

function show(number: number, packed: Packed): void {
  articles.forEach((article, i) => (article.hidden = i !== number));
  tabs.forEach((tab) => {
    const isShown = Number(tab.dataset.run) === number;
    tab.setAttribute("aria-pressed", String(isShown));
    tab.closest(".runs tr, .mesh td")!.classList.toggle("shown", isShown);
  });
  draw(number, packed);
}

function shownByAddress(): number {
  return Math.max(0, articles.findIndex((article) => `#${article.id}` === location.hash.split("@")[0]));
}

async function drawRuns(text: string): Promise<void> {
  const packed = await unpack(text);
  tabs.forEach((tab) =>
    tab.addEventListener("click", () => {
      const number = Number(tab.dataset.run);
      history.replaceState(null, "", `#run-${number}`);
      show(number, packed);
    }),
  );
  show(shownByAddress(), packed);
}

async function main(): Promise<void> {
  const packed = document.getElementById("packed");
  if (packed) await drawRuns(packed.textContent!);
  makeResults();
  document.querySelectorAll<HTMLElement>("[data-filter]").forEach(makeFilter);
  document.documentElement.dataset.ready = "true";
}

main();
