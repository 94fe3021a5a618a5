import type { Queryables } from "./types.ts";

/** Whether inferences have a place: the two numbers of which the API makes `location`. */
export function hasPlaces(known: Queryables | null): boolean {
  return Boolean(known?.properties.longitude && known.properties.latitude);
}
