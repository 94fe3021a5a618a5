/** The state of the console as the fragment of its address, and the link of the page that is shown. Defaults are left out. */

export const VIEWS = ["grid", "patches", "table", "map"] as const;
export type View = (typeof VIEWS)[number];

/** In the place of a list: the page that compares two models. */
export const COMPARE = "compare";

/** In the place of a list: the page that opens a saved view, whose id is the entry. */
export const SAVED = "view";

/** In the place of an entry: the overview of a model. */
export const OVERVIEW = "overview";

/** In the place of an entry: how right a model was. */
export const EVALUATE = "evaluate";

/** In the place of an entry: how two windows of a model differ. */
export const DRIFT = "drift";

/** The pages of a model, by entry: empty is Explore. */
export const MODEL_PAGES: readonly (readonly [entry: string, title: string])[] = [
  [OVERVIEW, "Overview"],
  ["", "Explore"],
  [EVALUATE, "Evaluate"],
  [DRIFT, "Drift"],
];

export interface Link {
  model: string;
  /** The name of a list of `pages.ts`, in place of a model. */
  list: string;
  /** The id of an entry of that list, such as an erasure; of a model, its page: empty is Explore. */
  entry: string;
  /** What that page has in its address besides: `state=open&reason=no_model`. */
  search: string;
  /** CQL2 text. */
  filter: string;
  /** `24h`, or `<from>..<to>` with RFC 3339 times, each of which may be missing. */
  time: string;
  sort: string;
  view: View;
  /** The columns of the table, as `columns.ts` writes them; empty: the usual ones. */
  columns: string;
  /** The width of tiles: `s`, `l`; empty: medium. */
  size: string;
  /** The name by whose values the grid has a row each. */
  group: string;
  /** The uid of the inference that is looked at. */
  selected: string;
  /** The ordinal of the prediction of it that is marked. */
  marked: string;
  /** The uid of the inference that it is compared with. */
  beside: string;
  /** `1` while what arrives is followed. */
  live: string;
  /** What a window is compared with: so long before it, `<from>..<to>`, or `view:<id>`; empty: a week before it. */
  reference: string;
  /** The filter of that, if it is another one. */
  against: string;
  /** `1` while inferences are labelled. */
  labels: string;
}

export const EMPTY_LINK: Link = {
  model: "",
  list: "",
  entry: "",
  search: "",
  filter: "",
  time: "",
  sort: "-received_at",
  view: "grid",
  columns: "",
  size: "",
  group: "",
  selected: "",
  marked: "",
  beside: "",
  live: "",
  reference: "",
  against: "",
  labels: "",
};
const NAMES = {
  ...{ filter: "f", time: "t", sort: "s", view: "v", columns: "c", size: "z", group: "g" },
  ...{ selected: "sel", marked: "p", beside: "with", live: "live", search: "q" },
  ...{ reference: "ref", against: "rf", labels: "label" },
} as const;

function parseLink(fragment: string): Link {
  const [where = "", query = ""] = fragment.replace(/^#\/?/, "").split("?", 2);
  if (where === COMPARE) return { ...EMPTY_LINK, list: COMPARE, search: query };
  const [page, model = "", entry = ""] = where.split("/", 3);
  if (page === SAVED && model) return { ...EMPTY_LINK, list: SAVED, entry: decode(model) };
  if (page === "list") return { ...EMPTY_LINK, list: decode(model), entry: decode(entry), search: query };
  if (page !== "m" || !model) return EMPTY_LINK;
  const given = new URLSearchParams(query);
  const names = Object.keys(NAMES) as (keyof typeof NAMES)[];
  const read = Object.fromEntries(names.map((name) => [name, given.get(NAMES[name]) ?? EMPTY_LINK[name]])) as Pick<Link, keyof typeof NAMES>;
  const view = VIEWS.includes(read.view) ? read.view : EMPTY_LINK.view;
  return { ...EMPTY_LINK, ...read, view, model: decode(model), entry: MODEL_PAGES.some(([name]) => name === entry) ? entry : "" };
}

export function formatLink(link: Link): string {
  if (link.list) return formatListLink(link);
  if (!link.model) return "#/";
  const query = Object.entries(NAMES)
    .filter(([name]) => link[name as keyof Link] !== EMPTY_LINK[name as keyof Link])
    .map(([name, short]) => `${short}=${encodeURIComponent(link[name as keyof Link])}`)
    .join("&");
  const page = link.entry && !link.selected ? `/${link.entry}` : ""; // what is looked at is one of Explore's
  return `#/m/${encodeURIComponent(link.model)}${page}${query ? `?${query}` : ""}`;
}

function formatListLink({ list, entry, search }: Link): string {
  if (list === COMPARE) return `#/${COMPARE}${search ? `?${search}` : ""}`;
  if (list === SAVED) return `#/${SAVED}/${encodeURIComponent(entry)}`;
  const path = [list, ...(entry ? [entry] : [])].map(encodeURIComponent).join("/");
  return `#/list/${path}${search ? `?${search}` : ""}`;
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

class Router {
  link = $state.raw<Link>(parseLink(location.hash));

  constructor() {
    addEventListener("hashchange", () => {
      this.link = parseLink(location.hash);
    });
  }

  /** This link with changes; what was marked or compared of one inference is not of another. */
  change(changes: Partial<Link>): Link {
    return { ...this.link, marked: "", beside: "", ...changes };
  }

  /** The address of a page whose link differs so from this one. */
  href(changes: Partial<Link>): string {
    return formatLink(this.change(changes));
  }

  go(changes: Partial<Link>): void {
    location.hash = this.href(changes);
  }

  /** Goes there, with no step of its own for Back. */
  replace(changes: Partial<Link>): void {
    this.link = this.change(changes);
    history.replaceState(null, "", formatLink(this.link));
  }
}

export const router = new Router();

export function readSearch(name: string): string {
  return new URLSearchParams(router.link.search).get(name) ?? "";
}

/** The values of some names; an empty text for what is left out. */
export function readValues<Name extends string>(names: readonly Name[]): Record<Name, string> {
  return Object.fromEntries(names.map((name) => [name, readSearch(name)])) as Record<Name, string>;
}

/** The search with changes; what is empty is left out. */
export function changeSearch(changes: Record<string, string>): string {
  const search = new URLSearchParams(router.link.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value) search.set(name, value);
    else search.delete(name);
  }
  return search.toString();
}
