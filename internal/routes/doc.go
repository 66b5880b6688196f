// Package routes holds black-box tests of what the Authority answers beside
// Commands and delivery: snapshots and archival, what waits for whom, what is
// stuck, presence, budgets, progress, limits, and who may ask for what.
//
// The hazard they guard against is a route that answers more, or to more people,
// than API.md says; so one test walks every route there is.
package routes
