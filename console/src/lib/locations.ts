import type { Queryables } from "./types.ts";

/** Whether inferences have a location: the two numbers of which the API makes `location`. */
export function hasLocations(known: Queryables | null): boolean {
  return Boolean(known?.properties.longitude && known.properties.latitude);
}
