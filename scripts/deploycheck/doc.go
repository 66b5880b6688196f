// Package deploycheck tests Dockerfile and docker-compose.yml without a Docker
// engine. What it guards against is a deployment file that drifts from the
// programs: a setting that is spelt otherwise, a program that is not built, a
// health check that needs a shell the image does not have.
//
// What only an engine can show stays untested here: that the images exist and
// that the containers start. scripts/check-deploy runs the build command and
// the health checks outside a container.
package deploycheck
