resource "weir_billing_endpoint" "stripe" {
  system          = "stripe"
  subject_from    = "metadata.user_id"
  fallback_plan   = weir_plan.free.slug
  signing_secrets = ["whsec_example"] # better: an ephemeral variable
  secrets_version = 1
}
