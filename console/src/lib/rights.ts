/** Rights and roles in words. A test holds them to those of the store. */

export const RIGHTS: Record<string, string> = {
  read: "See models, inferences, metadata and predictions",
  read_inputs: "See what was sent: pictures, texts, raw requests",
  annotate: "Tag inferences, and change their metadata",
  export: "Export everything that matches a filter",
  delete: "Erase inferences",
  hold: "Place and release legal holds",
  admin: "Register models, set policies, redrive dead letters, see the audit; over everything: make and revoke keys",
  override: "Override a safeguard where the API allows it",
};

export const ROLES: Record<string, string[]> = {
  reader: ["read"],
  analyst: ["read", "read_inputs", "annotate", "export"],
  owner: Object.keys(RIGHTS),
};

/** The role that has exactly these rights, else the rights. */
export function nameRights(rights: string[]): string {
  const has = (role: string[]) => role.length === rights.length && role.every((right) => rights.includes(right));
  return Object.keys(ROLES).find((name) => has(ROLES[name] ?? [])) ?? rights.join(", ");
}
