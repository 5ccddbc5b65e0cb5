# Training in a container image: the ranks, the checks before them and nomad alloc
# exec run in it, through podman, Apptainer or Enroot, whichever the node has. The
# script is the job's own, or one of the image's by its absolute path.
#
# The image is brought to the nodes while the gang is held. Name a digest or a new
# tag where it changes: what a node has is not pulled again.
#
#   muster job run image.hcl

job "image" {
  type = "batch"

  constraint {
    attribute = "${meta.muster}"
    value     = "admits-this-job"
  }

  group "rank" {
    count = 4

    task "train" {
      driver = "torchrun"

      config {
        image              = "nvcr.io/nvidia/pytorch:25.10-py3"
        image_pull_timeout = "30m" # below the planner's reserve_timeout
        script             = "local/train.py"
        args               = ["--data", "/data/imagenet"] # one of the operator's mounts
        checkpoint         = "/mnt/ckpt/image"
      }

      artifact {
        source = "https://git.example/team/train.tar.gz"
      }

      resources {
        cpu    = 32000
        memory = 262144

        device "nvidia/gpu" {
          count = 8
        }
      }
    }
  }
}
