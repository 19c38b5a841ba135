-- To find out whether a VM has a text, without reading all VMs.
CREATE INDEX vm_user_data ON vm (user_data) WHERE user_data <> '';
CREATE INDEX vm_custom_data ON vm (custom_data) WHERE custom_data <> '';
CREATE INDEX vm_public_keys ON vm (public_keys) WHERE public_keys <> '';
