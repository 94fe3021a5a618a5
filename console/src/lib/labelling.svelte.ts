/**
 * Truth set by people, picture after picture. What is decided is shown at once and saved behind it; what could not be
 * saved stays, and is sent again. Each decision can be undone.
 */

import { Loaded, toProblem } from "./answers.svelte.ts";
import type { Problem } from "./api.ts";
import { findSize, type Size } from "./shapes.ts";
import { findTask, type Task } from "./tasks.ts";
import { accept, type Box, isSameBox, listBoxes, makeItem, type Predicted, askTruth, saveTruth, SOURCE, type Truth, type TruthItem, writeTag } from "./truth.ts";
import type { Inference, Model } from "./types.ts";

type Items = TruthItem[] | null;

/** What was decided of an inference here; null: nothing is said of it. */
interface Decided {
  inference: Inference;
  items: Items;
  /** Of what it replaces; null: whatever that is. */
  tag: string | null;
  /** What it has, if that is known. */
  saved: Truth | null;
  isSaving: boolean;
  problem: Problem | null;
}

const PAUSE_MS = 5000;
const MOST_UNDONE = 200;

class Labelling {
  /** Of the inference that is looked at. */
  readonly sets = new Loaded<Truth[]>();
  /** How many got a truth here that had none, less those that lost it. */
  added = $state(0);
  /** The place of the box that is picked. */
  picked = $state<number | null>(null);
  /** The label of the next box that is drawn. */
  label = $state("");
  /** Of the picture, once it has come. */
  size = $state.raw<Size | null>(null);
  task = $state.raw<Task>(findTask());
  #inference = $state.raw<Inference | null>(null);
  #decided = $state.raw<ReadonlyMap<string, Decided>>(new Map());
  #undo = $state.raw<{ inference: Inference; items: Items }[]>([]);

  constructor() {
    addEventListener("beforeunload", (event) => this.isUnsaved && event.preventDefault());
  }

  open(inference: Inference, model: Model | null): void {
    if (this.#inference?.model_id !== inference.model_id) this.#undo = [];
    this.#inference = inference;
    this.task = findTask(inference.task_type, model?.task_type);
    this.size = findSize(inference, null);
    this.picked = null;
    this.#ask(inference);
  }

  #ask(inference: Inference): void {
    this.sets.clear();
    this.sets.ask((signal) => askTruth(inference, signal));
  }

  stop(): void {
    this.sets.stop();
  }

  /** What is known of it: the sets of others, and one's own, which may be on its way. */
  get others(): Truth[] {
    return this.sets.data?.filter(({ source }) => source !== SOURCE) ?? [];
  }

  get own(): Truth | null {
    const own = this.#here ? this.#here.saved : this.sets.data?.find(({ source }) => source === SOURCE);
    return own ?? null;
  }

  /** What people say of it; null: nothing. */
  get items(): Items {
    return this.#here ? this.#here.items : (this.own?.items ?? null);
  }

  get #here(): Decided | undefined {
    return this.#inference ? this.#decided.get(this.#inference.uid) : undefined;
  }

  get isSaving(): boolean {
    return this.#here?.isSaving ?? false;
  }

  get failed(): Decided[] {
    return [...this.#decided.values()].filter(({ problem }) => problem);
  }

  get isUnsaved(): boolean {
    return [...this.#decided.values()].some(({ isSaving, problem }) => isSaving || problem);
  }

  get mayUndo(): boolean {
    return this.#undo.length > 0;
  }

  /** Sets the truth of the inference that is looked at. */
  decide(items: Items): void {
    const inference = this.#inference;
    if (!inference) return;
    this.#undo = [...this.#undo.slice(-MOST_UNDONE), { inference, items: this.items }];
    this.#set(inference, items);
  }

  /** Takes the last decision back, and returns the inference that it was about. */
  undo(): Inference | null {
    const last = this.#undo.at(-1);
    if (!last) return null;
    this.#undo = this.#undo.slice(0, -1);
    this.#set(last.inference, last.items);
    return last.inference;
  }

  /** Sends again what was not saved. `isForced`: over what somebody else has said meanwhile. */
  retry(isForced = false): void {
    for (const each of this.failed) {
      this.#change(each, { problem: null, ...(isForced && { tag: null }) });
      void this.#save(each.inference.uid);
    }
  }

  /** Forgets what was not saved. */
  drop(): void {
    const gone = new Set(this.failed.map(({ inference }) => inference.uid));
    this.#decided = new Map([...this.#decided].filter(([uid]) => !gone.has(uid)));
    if (this.#inference && gone.has(this.#inference.uid)) this.#ask(this.#inference);
  }

  // Of what is looked at, and its predictions.

  /** What would be true if it is right; null: there is nothing to be right. */
  get proposed(): Items {
    return this.#inference && accept(this.#inference, this.task, this.size);
  }

  get shown(): TruthItem[] {
    return this.items ?? this.proposed ?? [];
  }

  get #predicted(): Predicted[] {
    return this.#inference && this.task.way === "shapes" ? listBoxes(this.#inference, this.size) : [];
  }

  isPredicted(item: TruthItem): boolean {
    return this.#predicted.some(({ box, label }) => label === item.label && isSameBox(item.box, box));
  }

  /** The predicted boxes that are not said to be there. */
  get rejected(): Predicted[] {
    return this.#predicted.filter(({ box }) => !this.shown.some((item) => isSameBox(item.box, box)));
  }

  keep({ label, box }: Predicted): void {
    this.decide([...this.shown, makeItem({ label, box })]);
  }

  remove(place = this.picked): void {
    if (place === null) return;
    this.decide(this.shown.filter((_, other) => other !== place));
    this.picked = null;
  }

  /** Another label for the box that is picked, and for the next ones. */
  relabel(label: string): void {
    this.label = label;
    const { picked } = this;
    if (picked !== null) this.decide(this.shown.map((item, place) => (place === picked ? { ...item, label } : item)));
  }

  /** `only`: the class, where there is just one. */
  draw(box: Box, only = ""): void {
    this.decide([...this.shown, makeItem({ label: this.label || only || null, box })]);
    this.picked = this.shown.length - 1;
  }

  /** Picks the smallest box around a point; one that was not kept is kept. */
  pick([x, y]: [number, number]): void {
    const isIn = (box: number[] | null): box is Box => box !== null && x >= box[0]! && x <= box[2]! && y >= box[1]! && y <= box[3]!;
    const area = ([left, top, right, low]: Box) => (right - left) * (low - top);
    const hits = [
      ...this.shown.flatMap(({ box }, place) => (isIn(box) ? [{ size: area(box), act: () => (this.picked = this.picked === place ? null : place) }] : [])),
      ...this.rejected.flatMap((each) => (isIn(each.box) ? [{ size: area(each.box), act: () => this.keep(each) }] : [])),
    ];
    const smallest = hits.toSorted((a, b) => a.size - b.size)[0];
    if (smallest) smallest.act();
    else this.picked = null;
  }

  #set(inference: Inference, items: Items): void {
    const isHere = this.#inference?.uid === inference.uid;
    const before = this.#decided.get(inference.uid);
    const saved = before?.saved ?? (isHere ? this.own : null);
    const had = before ? before.items !== null : saved !== null;
    const decided = before ?? { inference, saved, tag: writeTag(saved), isSaving: false };
    this.added += Number(items !== null) - Number(had);
    const kept = [...this.#decided].filter(([, each], place, { length }) => length - place < MOST_UNDONE || each.isSaving || each.problem);
    this.#decided = new Map([...kept, [inference.uid, { ...decided, items, problem: null }]]);
    void this.#save(inference.uid);
  }

  #change({ inference: { uid } }: Decided, changes: Partial<Decided>): void {
    const now = this.#decided.get(uid);
    if (now) this.#decided = new Map([...this.#decided, [uid, { ...now, ...changes }]]);
  }

  /** Saves one after the other, and the newest alone of several. */
  async #save(uid: string): Promise<void> {
    const sent = this.#decided.get(uid);
    if (!sent || sent.isSaving) return;
    this.#change(sent, { isSaving: true });
    try {
      const saved = sent.items || sent.saved ? await saveTruth(sent.inference, sent.items, sent.tag) : null;
      this.#change(sent, { saved, tag: writeTag(saved), isSaving: false });
    } catch (fault) {
      const problem = toProblem(fault);
      this.#change(sent, { problem, isSaving: false });
      if (problem.passes) setTimeout(() => this.#sendAgain(uid), (problem.retrySeconds ?? 0) * 1000 || PAUSE_MS);
      return;
    }
    if (this.#decided.get(uid)?.items !== sent.items) void this.#save(uid);
  }

  #sendAgain(uid: string): void {
    const waiting = this.#decided.get(uid);
    if (!waiting?.problem?.passes) return;
    this.#change(waiting, { problem: null });
    void this.#save(uid);
  }
}

export const labelling = new Labelling();
