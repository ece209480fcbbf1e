"""Remove what the harness made: the kind cluster and the images. Built programs stay in the cache.

PYTHONPATH=tests python3 -m harness.clean
"""

import shutil

from harness import binaries, cluster, images
from harness.engine import engine
from harness.progress import main, step


@main
def _main() -> None:
    if not shutil.which("docker") and not shutil.which("podman"):
        return
    docker = engine()
    if any(binaries.CACHE.glob("kind-*/kind")):
        cluster.delete()
    listed = docker.run("images", "--format", "{{.Repository}}:{{.Tag}}").split()
    if own := [image for image in listed if image.startswith(images.PREFIX) or image in images.COMPONENT_IMAGES]:
        with step(f"removing {len(own)} images"):
            docker.run("rmi", "--force", *own)
            docker.run("image", "prune", "--force", "--filter=label=elastic-tfjob=build")


if __name__ == "__main__":
    _main()
