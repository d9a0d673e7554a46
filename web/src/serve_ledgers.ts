// Ledgers of the folder: opened, laid over one another, compared; and jobs that are being watched, as they stand.

import { button, make } from "./dom";
import { drawTicks, shape, tickLabels } from "./serve_answer";
import { type LedgerRow, type Overlay, type RankStatus, Gone, address, look } from "./serve_api";

const LOOK_AGAIN_MS = 2000;

export class Ledgers {
  readonly element = make("div", { class: "ledgers" });
  private readonly rows = make("tbody", {});
  private readonly shown = make("div", { class: "shown" });
  private readonly chosen = new Set<string>();
  private readonly acts = make("div", { class: "acts" });
  private timer = 0;

  constructor(private readonly gone: (isGone: boolean) => void) {
    this.acts.append(
      button("Lay over one another", "their memory in one drawing", () => this.overlay()),
      button("Compare two", "what grew, what shrank", () => this.compare()),
      button("One page of all", "the report page", () => this.open([...this.chosen])),
    );
    this.element.append(make("h2", {}, "Ledgers of this folder"), make("table", { class: "list" }, this.rows), this.acts, this.shown);
  }

  async refresh(): Promise<void> {
    try {
      const { ledgers } = (await look("/api/ledgers")) as { ledgers: LedgerRow[] };
      this.gone(false);
      this.rows.replaceChildren(...ledgers.map((ledger) => this.row(ledger)));
      if (!ledgers.length) this.rows.append(make("tr", {}, make("td", { class: "quiet" }, "There are none yet: memfit predict, memfit run and memfit watch write them.")));
      this.enable();
    } catch (error) {
      this.gone(error instanceof Gone);
    }
  }

  /** While it is not looked at, nothing is asked. */
  rest(): void {
    clearTimeout(this.timer);
  }

  private row(ledger: LedgerRow): HTMLElement {
    const box = make("input", { type: "checkbox", "aria-label": `choose ${ledger.name}` });
    box.checked = this.chosen.has(ledger.name);
    box.disabled = ledger.isBroken;
    box.addEventListener("change", () => {
      box.checked ? this.chosen.add(ledger.name) : this.chosen.delete(ledger.name);
      this.enable();
    });
    const acts = make("td", { class: "n" });
    if (!ledger.isBroken) acts.append(button("Open", "the report page", () => this.open([ledger.name])));
    if (!ledger.isBroken) acts.append(button(ledger.isRunning ? "Live" : "How it stood", "memory, peak, trend and alarms of every rank", () => this.follow(ledger.name)));
    return make("tr", { class: ledger.isRunning ? "running" : "" }, make("td", {}, box), make("th", { scope: "row" }, ledger.name), make("td", { class: "quiet" }, ledger.text), make("td", { class: "n wide" }, ledger.size), acts);
  }

  private enable(): void {
    const [overlay, compare, page] = [...this.acts.children] as HTMLButtonElement[];
    overlay.disabled = page.disabled = this.chosen.size < 1;
    compare.disabled = this.chosen.size !== 2;
  }

  private open(names: string[]): void {
    this.frame(address("/report", names.map((name) => ["file", name])), `report of ${names.join(", ")}`);
  }

  private frame(src: string, title: string): void {
    this.rest();
    const frame = make("iframe", { src, title, class: "report" });
    this.shown.replaceChildren(frame);
    frame.scrollIntoView({ block: "start" });
  }

  private async told(make_: () => Promise<HTMLElement>): Promise<void> {
    this.rest();
    try {
      this.shown.replaceChildren(await make_());
      this.gone(false);
    } catch (error) {
      this.gone(error instanceof Gone);
      if (!(error instanceof Gone)) this.shown.replaceChildren(make("p", { class: "alarm", role: "alert" }, (error as Error).message));
    }
  }

  private overlay(): Promise<void> {
    return this.told(async () => {
      const names = [...this.chosen];
      const found: Overlay = await look(`/api/overlay?${new URLSearchParams(names.map((name) => ["file", name]))}`);
      const svg = shape("svg", { viewBox: `0 0 ${found.width} ${found.height}`, preserveAspectRatio: "none", role: "img", "aria-label": "memory of the chosen runs" });
      drawTicks(svg, found.ticks, found.width);
      found.lines.forEach((points, i) => svg.append(shape("polyline", { points, class: `line l-${i % 6}` })));
      const legend = found.names.map((name, i) => make("span", {}, make("i", { class: `key l-${i % 6}` }), `${name}, peak ${found.peaks[i]}`));
      return make("div", { class: "picture" }, make("div", { class: "plot" }, tickLabels(found.ticks, found.height), svg as unknown as HTMLElement), make("div", { class: "legend" }, ...legend));
    });
  }

  private compare(): void {
    const [before, after] = [...this.chosen];
    this.frame(address("/diff", [["before", before], ["after", after]]), `what ${before} and ${after} differ in`);
  }

  private async follow(name: string): Promise<void> {
    await this.told(async () => {
      const { ranks, isRunning } = (await look(`/api/running?${new URLSearchParams({ file: name })}`)) as { ranks: RankStatus[]; isRunning: boolean };
      if (isRunning) this.timer = window.setTimeout(() => this.follow(name), LOOK_AGAIN_MS);
      return make("div", { class: "live" }, make("h3", {}, isRunning ? `${name}, live` : `${name}, as it ended`), ...ranks.map(drawRank));
    });
  }
}

function drawRank(status: RankStatus): HTMLElement {
  const peak = make("i", { class: "peak" });
  const now = make("i", { class: status.alarms.length ? "bad" : "good" });
  peak.style.width = `${100 * status.peakShare}%`;
  now.style.width = `${100 * status.share}%`;
  const kinds = status.categories.map((part) => make("span", {}, make("i", { class: `key c-${part.key}` }), `${part.label} ${part.text}`));
  return make("section", { class: "rank" }, make("p", {}, make("b", {}, `rank ${status.rank}`), `, step ${status.step}: ${status.inUse} in use, peak ${status.peak}${status.left ? `, ${status.left} left` : ""}; ${status.trend}`), make("div", { class: "meter tall-meter" }, peak, now), make("div", { class: "legend" }, ...kinds), ...status.alarms.map((alarm) => make("p", { class: "alarm" }, alarm)));
}
