// The page of memfit serve: a question on the left, its answer on the right; the exact answer takes the place of the instant one.

import "./page.css";
import "./serve.css";
import { button, make } from "./dom";
import { Form } from "./serve_form";
import { Ledgers } from "./serve_ledgers";
import { type Acts, drawAnswer } from "./serve_answer";
import { type Answer, type Controls, type Question, Dropped, Gone, Refused, ask, askExactly, look, sayGoodbye } from "./serve_api";

const EXACT_AFTER_MS = 350;
const ASK_AGAIN_AFTER_MS = 500;

class Page {
  private readonly answers = make("div", { class: "answers" });
  private readonly kept = make("div", { class: "kept" });
  private readonly now = make("div", { class: "now" });
  /** The answer in a line, where the controls take the whole screen; it leads to all of it. */
  private readonly glance = button("", "Show all of the answer", () => this.now.scrollIntoView({ behavior: "smooth" }));
  private readonly banner = make("p", { class: "alarm banner", role: "alert", hidden: "" }, "The server does not answer. Start it again with memfit serve, and open the address that it prints.");
  private readonly form: Form;
  private readonly ledgers = new Ledgers((isGone) => (this.banner.hidden = !isGone));
  private asking = new AbortController();
  private timer = 0;
  private clock = 0;

  constructor(root: HTMLElement, controls: Controls) {
    this.form = new Form(controls, () => this.changed());
    this.answers.append(this.kept, this.now);
    this.glance.className = "glance";
    new IntersectionObserver(([seen]) => (this.glance.hidden = seen.isIntersecting), { rootMargin: "0px 0px -80px" }).observe(this.now);
    const ask_ = make("div", { class: "sheet", id: "sheet-ask" }, this.form.element, this.answers, this.glance);
    const ledgers = make("div", { class: "sheet", id: "sheet-ledgers", hidden: "" }, this.ledgers.element);
    const tabs = [
      ["Ask", ask_],
      ["Ledgers and running jobs", ledgers],
    ] as const;
    const buttons = tabs.map(([label, sheet]) =>
      button(label, "", () => {
        tabs.forEach(([, other]) => (other.hidden = other !== sheet));
        buttons.forEach((other, i) => other.setAttribute("aria-pressed", String(tabs[i][1] === sheet)));
        sheet === ledgers ? this.ledgers.refresh() : this.ledgers.rest();
      }),
    );
    buttons[0].setAttribute("aria-pressed", "true");
    buttons[1].setAttribute("aria-pressed", "false");
    const head = make("header", {}, make("h1", {}, "memfit"), make("p", { class: "quiet" }, `${controls.folder}, version ${controls.version}`), make("nav", { class: "choice" }, ...buttons));
    root.append(head, this.banner, ask_, ledgers);
    this.form.show(fromAddress() ?? { kind: "model", subject: "llama3-8b", gpu: "H100-80GB", world_size: 8, words: { checkpointing: "full" } });
    window.addEventListener("hashchange", () => {
      const question = fromAddress();
      if (question && JSON.stringify(question) !== JSON.stringify(this.form.question())) {
        this.form.show(question);
        this.changed();
      }
    });
    window.addEventListener("pagehide", sayGoodbye);
    window.addEventListener("pageshow", (event) => event.persisted && this.changed());  // back again: what was under way is dropped
    this.changed();
  }

  /** Something else is asked: what was under way is dropped. */
  private changed(): void {
    this.asking.abort();
    this.asking = new AbortController();
    clearTimeout(this.timer);
    clearInterval(this.clock);
    const question = this.form.question();
    history.replaceState(null, "", `${location.pathname}${location.search}#${encodeURIComponent(JSON.stringify(question))}`);
    this.form.complain("");
    if (!question.subject) {
      this.now.replaceChildren(make("p", { class: "quiet" }, "Say what is trained."));
      sayGoodbye();
      return;
    }
    const signal = this.asking.signal;
    this.instant(question, signal).then((goesOn) => {
      if (goesOn && !signal.aborted) this.timer = window.setTimeout(() => this.exact(question, signal), EXACT_AFTER_MS);
    });
  }

  private async instant(question: Question, signal: AbortSignal): Promise<boolean> {
    try {
      const answer: Answer = await ask("/api/instant", question, signal);
      if (!signal.aborted) this.show(answer, "the exact answer is being predicted");
      return true;
    } catch (error) {
      return signal.aborted ? false : this.fail(error);
    }
  }

  private async exact(question: Question, signal: AbortSignal): Promise<void> {
    const began = performance.now();
    this.clock = window.setInterval(() => {
      const badge = this.now.querySelector(".badge");
      badge?.setAttribute("data-seconds", `${Math.round((performance.now() - began) / 1000)} s`);
    }, 1000);
    try {
      const answer: Answer = await askExactly(question, signal);
      if (!signal.aborted) this.show(answer, "");
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Dropped) this.timer = window.setTimeout(() => this.exact(question, signal), ASK_AGAIN_AFTER_MS);
      else this.fail(error);
    } finally {
      if (!signal.aborted) clearInterval(this.clock);
    }
  }

  private show(answer: Answer, waiting: string): void {
    this.banner.hidden = true;
    this.now.replaceChildren(drawAnswer(answer, this.acts(), waiting));
    this.now.dataset.kind = answer.kind;
    this.glance.textContent = answer.headline;
    this.glance.dataset.tone = answer.tone;
  }

  private acts(): Acts {
    return {
      apply: (change) => this.form.apply(change),
      keep: (answer) => {
        const card = drawAnswer(answer, { apply: (change) => this.form.apply(change), close: () => this.kept.replaceChildren() });
        this.kept.replaceChildren(card);
        this.answers.scrollIntoView({ block: "nearest" });
      },
    };
  }

  /** Tells what went wrong; whether it makes sense to go on. */
  private fail(error: unknown): boolean {
    if (error instanceof DOMException && error.name === "AbortError") return false;
    this.banner.hidden = !(error instanceof Gone);
    if (error instanceof Refused) {
      this.form.complain(error.message);
      this.now.replaceChildren();
      delete this.now.dataset.kind;
      this.glance.textContent = "";
    }
    return false;
  }
}

function fromAddress(): Question | null {
  try {
    const found = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    return typeof found === "object" && found !== null && typeof found.subject === "string" ? found : null;
  } catch {
    return null;
  }
}

async function main(): Promise<void> {
  const root = document.getElementById("app")!;
  try {
    new Page(root, await look("/api/controls"));
    document.documentElement.dataset.ready = "true";
  } catch (error) {
    root.append(make("p", { class: "alarm", role: "alert" }, error instanceof Refused ? error.message : "The server does not answer."));
  }
}

main();
