/** Retention policies: read, drafted, and written as the API takes them. */

import { get, getRevised, path, Problem } from "./api.ts";
import { readPeriod, showId } from "./format.ts";
import type { Extent } from "./extents.ts";
import { readTypes } from "./texts.ts";
import type { Schemas } from "./types.ts";

type ShownRule = Schemas["Rule"];
export type Version = Schemas["PolicyVersion"];

export type Policy = Schemas["Policy"];

export type Preview = Schemas["PolicyPreview"];
export type Run = Schemas["RetentionRun"];

export function policyPath({ kind, id }: Extent): string {
  return kind === "all" ? "retention-policy" : path(kind === "model" ? "models" : "projects", id, "retention-policy");
}

/** Whose policy a body is, which the API compares with the path. */
export function nameOwner({ kind, id }: Extent): Body {
  return kind === "all" ? { level: "default", id: null } : { level: kind, id };
}

export function nameLevel({ kind, id }: Extent): string {
  if (kind === "all") return "the whole store";
  return kind === "project" ? `the project ${showId(id)}` : showId(id);
}

/** A policy with the revision that a change has to name; the policy is null if there is none. */
export interface Standing {
  extent: Extent;
  policy: Policy | null;
  revision: string;
  history: Version[];
}

export async function askStanding(extent: Extent, signal: AbortSignal): Promise<Standing> {
  const where = policyPath(extent);
  const [answer, history] = await Promise.all([
    orNull(getRevised<Policy>(where, signal)),
    get<{ items: Version[] }>(`${where}/history?limit=20`, signal),
  ]);
  // A policy that was removed has a revision too, which its history alone says.
  const revision = answer?.revision ?? `"${history.items[0]?.revision ?? 0}"`;
  return { extent, policy: answer?.data ?? null, revision, history: history.items };
}

async function orNull<T>(question: Promise<T>): Promise<T | null> {
  try {
    return await question;
  } catch (fault) {
    if (fault instanceof Problem && fault.status === 404) return null;
    throw fault;
  }
}

/** What is in force, of a policy that may only wait to begin. */
export function findInForce({ policy }: Standing): Policy | null {
  return policy?.state === "in_force" && !policy.removed ? policy : null;
}

export function writeAges(rule: ShownRule): string {
  const whole = `Everything is kept ${writeAge(rule.keep_inference)}`;
  const parts = ([["input", rule.keep_input], ["response", rule.keep_response]] as const).filter(([, age]) => age !== rule.keep_inference);
  return `${whole}${parts.map(([part, age]) => `, the ${part} ${writeAge(age)}`).join("")}.`;
}

export function writeAge(age: string): string {
  return age === "forever" ? "forever" : `for ${readPeriod(age)}`;
}

/** A rule as it is being written; what is empty is left out. */
interface DraftRule {
  name: string;
  filter: string;
  types: string;
  keep_input: string;
  keep_response: string;
  keep_inference: string;
}

export interface Draft {
  rules: DraftRule[];
  max_inferences: string;
  minimum_age: string;
  undercuts_minimum_age: boolean;
}

export const NEW_RULE: DraftRule = { name: "", filter: "", types: "", keep_input: "", keep_response: "", keep_inference: "P30D" };

export function draftPolicy(policy: Version | null): Draft {
  return {
    rules: policy?.rules.map(draftRule) ?? [{ ...NEW_RULE }],
    max_inferences: String(policy?.max_inferences ?? ""),
    minimum_age: policy?.minimum_age ?? "",
    undercuts_minimum_age: policy?.undercuts_minimum_age ?? false,
  };
}

function draftRule(rule: ShownRule): DraftRule {
  const ownAge = (age: string) => (age === rule.keep_inference ? "" : age);
  return {
    name: rule.name ?? "",
    filter: rule.filter ?? "",
    types: "",
    keep_input: ownAge(rule.keep_input),
    keep_response: ownAge(rule.keep_response),
    keep_inference: rule.keep_inference,
  };
}

export type Body = Record<string, unknown>;

export function buildPolicy(draft: Draft): Body {
  const count = (text: string) => (/^\d+$/.test(text.trim()) ? Number(text) : text.trim());
  return {
    rules: draft.rules.map(buildRule),
    ...(draft.max_inferences.trim() && { max_inferences: count(draft.max_inferences) }),
    ...(draft.minimum_age.trim() && { minimum_age: draft.minimum_age.trim() }),
    ...(draft.undercuts_minimum_age && { undercuts_minimum_age: true }),
  };
}

function buildRule({ types, ...rule }: DraftRule): Body {
  const given = Object.entries(rule).flatMap(([name, text]) => (text.trim() ? [[name, text.trim()]] : []));
  return { ...Object.fromEntries(given), ...(types.trim() && { types: readTypes(types) }) };
}

/** A policy in JSON as a draft. Raises SyntaxError, TypeError. */
export function parseDraft(text: string): Draft {
  const body = JSON.parse(text) as { rules?: Partial<Record<string, unknown>>[] } & Body;
  const write = (value: unknown) => (value === undefined || value === null ? "" : String(value));
  return {
    rules: (body.rules ?? []).map((rule) => ({
      name: write(rule.name),
      filter: typeof rule.filter === "object" && rule.filter ? JSON.stringify(rule.filter) : write(rule.filter),
      types: Object.entries(rule.types ?? {}).map(([key, type]) => `${key}: ${String(type)}`).join("\n"),
      keep_input: write(rule.keep_input),
      keep_response: write(rule.keep_response),
      keep_inference: write(rule.keep_inference),
    })),
    max_inferences: write(body.max_inferences),
    minimum_age: write(body.minimum_age),
    undercuts_minimum_age: body.undercuts_minimum_age === true,
  };
}
