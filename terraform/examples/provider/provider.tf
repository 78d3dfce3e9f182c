terraform {
  required_providers {
    weir = {
      source = "weir-dev/weir"
    }
  }
}

provider "weir" {
  url = "https://weir.example.com" # the key is in the environment variable WEIR_KEY
}
