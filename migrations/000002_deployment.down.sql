DROP TABLE deployment_secrets;
DROP TABLE config_version;
