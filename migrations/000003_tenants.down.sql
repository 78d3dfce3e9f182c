DROP TABLE deleted_tenants;
DROP TABLE tenants;
